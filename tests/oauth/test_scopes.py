"""Scopes of tools, resources and prompts: 403 with the missing scope, in both protocol generations."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from mcp_serving import MCPServer
from mcp_serving.asgi import lifecycle
from mcp_serving.tools.registry import Registry
from tests.support import in_django
from tests.support.harness import INITIALIZE, call
from tests.support.oauth import SITE, ask, browser_of, client_of, told
from tests.support.raw_http import headers_of

from mcp_serving.tokens.models import Token  # isort: skip - after Django is set up

pytestmark = pytest.mark.usefixtures("users_of_its_own")

PERSONAL = "/personal"
RESOURCE_METADATA = f'resource_metadata="{SITE}/.well-known/oauth-protected-resource/mcp"'


def personal(*scopes: str, user: str = "ann") -> str:
    _, text = Token.objects.issue(in_django.user(user), scopes=scopes, expires=None)
    return text


REQUESTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a tool": ("tools/call", {"name": "list_notes", "arguments": {}}, "notes:read"),
    "a write tool": ("tools/call", {"name": "delete_note", "arguments": {"note": "x"}}, "notes:read"),
    "a resource": ("resources/read", {"uri": "notes://all"}, "notes:read"),
    "a template": ("resources/read", {"uri": "notes://milk/text"}, "notes:write"),
    "a prompt": ("prompts/get", {"name": "tidy"}, "notes:write"),
}


@pytest.mark.parametrize(("method", "params", "scope"), REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
def test_a_token_without_the_scope_gets_403_with_the_missing_scope(
    method: str, params: dict[str, Any], scope: str, modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp_serving")
    refused = send(PERSONAL, method, params, personal("other"), modern=modern)
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    # With the scope that it has: the next token is to have both.
    wanted = refused.headers["www-authenticate"].partition('scope="')[2].partition('"')[0].split()
    assert wanted[:2] == ["other", scope]
    assert refused.text == f"The token lacks the scope {scope}.\n"
    assert f"Refused a request for '/personal': its token lacks the scope {scope}." in caplog.text
    if params.get("name") != "delete_note":  # which then asks its user, and waits
        allowed = send(PERSONAL, method, params, personal("notes:read", "notes:write"), modern=modern)
        assert allowed.status_code == 200


def send(at: str, method: str, params: dict[str, Any], token: str, *, modern: bool) -> httpx2.Response:
    """One request, for older clients in a session that is opened for it."""
    from tests.project.oauth_asgi import application

    message = {**call(1, "x", modern=modern), "method": method}
    message["params"] = {**params, **{key: value for key, value in message["params"].items() if key == "_meta"}}

    async def work() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=application)  # type: ignore[arg-type]
        bearer = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url=SITE, headers=bearer) as client:
            try:
                session = {}
                if not modern:
                    opened = await client.post(at, json=INITIALIZE, headers=headers_of(INITIALIZE))
                    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
                name = {"mcp-name": params["uri"]} if modern and "uri" in params else {}
                return await client.post(at, json=message, headers={**headers_of(message), **session, **name})
            finally:
                await lifecycle.close()

    return anyio.run(work)


def test_a_client_that_signed_in_is_told_where_to_ask_for_more() -> None:
    token = client_of("ann", scope="notes:write").tokens()["access_token"]
    refused = ask(token, tool="list_notes")
    assert refused.status_code == 403
    assert refused.headers["www-authenticate"] == (
        f'Bearer error="insufficient_scope", {RESOURCE_METADATA}, scope="notes:write notes:read"'
    )
    more = client_of("ann", scope="notes:write notes:read").tokens()["access_token"]
    assert json.loads(told(ask(more, tool="list_notes"))) == ["milk", "bread"]


def test_a_user_who_is_logged_in_needs_no_scope() -> None:
    cookie = browser_of("ann").cookies["sessionid"].value
    assert json.loads(told(ask(None, tool="list_notes", Cookie=f"sessionid={cookie}"))) == ["milk", "bread"]


def test_a_tool_that_the_user_may_not_use_does_not_exist_whatever_the_scopes() -> None:
    for scopes in ((), ("notes:write",)):
        result = ask(personal(*scopes), PERSONAL, "hidden")
        assert result.status_code == 200
        assert "Unknown tool: hidden" in result.text
    assert ask(personal(user="clerk"), PERSONAL, "hidden").status_code == 403
    assert told(ask(personal("notes:write", user="clerk"), PERSONAL, "hidden")) == "seen"


def test_a_tool_that_needs_a_scope_is_listed_for_tokens_without_it() -> None:
    async def names(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    assert {"list_notes", "delete_note", "who"} <= with_client(personal(), names)
    assert "hidden" not in with_client(personal("notes:write"), names)


def with_client(token: str, work: Any, mode: str = "auto") -> Any:
    from tests.project.oauth_asgi import application

    async def agree(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    async def run() -> Any:
        transport = httpx2.ASGITransport(app=application)  # type: ignore[arg-type]
        bearer = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url=SITE, headers=bearer) as http:
            async with Client(
                streamable_http_client(f"{SITE}{PERSONAL}", http_client=http), mode=mode, elicitation_callback=agree
            ) as client:
                result = await work(client)
            await lifecycle.close()
            return result

    return anyio.run(run)


def test_a_tool_does_not_reach_another_one_that_needs_a_scope() -> None:
    async def around(client: Client) -> Any:
        try:
            return (await client.call_tool("around", {})).content
        except MCPError as error:
            return error

    assert str(with_client(personal(), around)) == "The token lacks the scope notes:read."
    assert "milk" in str(with_client(personal("notes:read"), around))


def test_a_write_tool_with_scopes_still_asks_its_user() -> None:
    async def delete(client: Client) -> Any:
        return await client.call_tool("delete_note", {"note": "milk"})

    assert "milk is deleted" in str(with_client(personal("notes:read", "notes:write"), delete).content)


@pytest.mark.parametrize(
    "ref", [{"type": "ref/resource", "uri": "notes://{note}/text"}, {"type": "ref/prompt", "name": "tidy"}]
)
def test_completion_needs_the_scope_of_what_it_completes(ref: dict[str, str]) -> None:
    params = {"ref": ref, "argument": {"name": "note", "value": ""}}
    for modern in (True, False):
        assert send(PERSONAL, "completion/complete", params, personal(), modern=modern).status_code == 403
        allowed = send(PERSONAL, "completion/complete", params, personal("notes:write"), modern=modern)
        assert '"milk"' in allowed.text


def test_a_message_that_no_request_can_be_read_from_is_the_sdks_to_answer() -> None:
    from tests.project.oauth_asgi import application

    async def work() -> list[int]:
        transport = httpx2.ASGITransport(app=application)  # type: ignore[arg-type]
        headers = {**headers_of(call(1, "who", modern=True)), "Authorization": f"Bearer {personal_token}"}
        async with httpx2.AsyncClient(transport=transport, base_url=SITE, headers=headers) as client:
            statuses = [
                (await client.post(PERSONAL, content=body)).status_code
                for body in (b"", b"{", b"[]", b"[" * 4_000, b'{"jsonrpc": "2.0", "id": 1, "method": 7}')
            ]
            large = await client.post(PERSONAL, content=b" " * (4 * 1024 * 1024 + 1))
            await lifecycle.close()
            return [*statuses, large.status_code]

    personal_token = personal()
    assert anyio.run(work) == [400] * 5 + [413]


# Declaring


WRONG = {
    "a text": ("notes:read", TypeError, "it has to be a list of scopes"),
    "a space": (["notes read"], ValueError, "has the scope 'notes read'; a scope has ASCII characters"),
    "nothing": ([""], ValueError, "has the scope ''"),
    "a number": ([7], ValueError, "has the scope 7"),
}


@pytest.mark.parametrize(("scopes", "kind", "told"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("target", [lambda: MCPServer("x"), Registry], ids=["server", "registry"])
def test_a_scope_that_cannot_be_one_is_found_at_the_decorator(
    target: Any, scopes: Any, kind: type[Exception], told: str
) -> None:
    made = target()
    for decorator in (
        made.tool(scopes=scopes),
        made.read_tool(scopes=scopes),
        made.write_tool(confirm="?", scopes=scopes),
        made.resource("x://y", scopes=scopes),
        made.prompt(scopes=scopes),
    ):
        with pytest.raises(kind, match=told):
            decorator(function)


def function() -> str:
    return ""


def test_a_registry_brings_its_scopes_and_a_removed_tool_takes_them_along() -> None:
    registry = Registry()
    registry.read_tool("read", scopes=["a"])(function)
    registry.write_tool("write", confirm="?", scopes=["b"])(function)
    registry.tool("any", scopes=["c"])(function)
    registry.resource("x://y", scopes=["d"])(function)
    registry.prompt("prompt", scopes=["e", "a"])(function)
    server = MCPServer("x")
    server.include(registry, prefix="x_")
    assert server.scopes.all() == ["a", "b", "c", "d", "e"]
    assert server.scopes.required("prompt", "x_prompt") == ("e", "a")
    server.remove_tool("x_write")
    server.remove_prompt("x_prompt")
    assert server.scopes.all() == ["a", "c", "d"]
