"""Who may call a handler: nobody by accident, and each by what they show."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import django
import httpx2
import pytest
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from mcp_serving import StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from tests.support import in_django
from tests.support.access_servers import AccessServers, bearer, logged_in, serving_access_servers
from tests.support.asgi_servers import ALL, serving
from tests.support.harness import INITIALIZE, ROOT, call
from tests.support.raw_http import headers_of, open_session
from tests.test_settings import manage

django.setup()

MODES = ["auto", "legacy"]


# Stated, or closed


@pytest.mark.process
@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_without_debug_a_handler_that_says_nothing_refuses_everybody_and_says_why_once(server: str) -> None:
    with serving(server, "tests.project.unstated", env={"TEST_DEBUG": "0"}) as (process, address):
        for _ in range(3):
            refused = httpx2.post(f"{address}/mcp", json=INITIALIZE, headers=headers_of(INITIALIZE))
            assert refused.status_code == 403
            assert refused.content == b"This MCP endpoint is not open: its handler does not say who may call.\n"
            assert httpx2.get(f"{address}/health").status_code == 403
        process.wait_for("give it public=True, login_required=True or auth=")
        assert process.errors.count("does not say who may call") == 1
    with serving(server, "tests.project.unstated", env={"TEST_DEBUG": "1"}) as (_, address):
        assert open_session(address, "/mcp")


@pytest.mark.process
def test_without_debug_runmcp_does_not_start_with_such_a_handler_and_deploy_checks_find_it() -> None:
    setting = {"HTTP_SERVER": "tests.project.unstated.build_daphne", "SERVER": "tests.project.mcp.server"}
    named = {"TEST_MCP_SERVING": json.dumps(setting)}
    command = manage("runmcp", "--transport", "http", TEST_DEBUG="0", TEST_ENDPOINTS='["tcp:0"]', **named)
    assert command.returncode == 1
    assert command.stderr == (
        "CommandError: DEBUG is off. The StreamableHTTPHandler at /mcp does not say who may call: give it public=True, "
        "login_required=True or auth=...\n"
    )
    check = manage("check", "--deploy", TEST_ASGI_APPLICATION="tests.project.unstated.application", **named)
    assert check.returncode == 1
    assert "(mcp_serving.E006) The StreamableHTTPHandler at /mcp does not say who may call" in check.stderr
    stated = manage("check", "--deploy", TEST_ASGI_APPLICATION="tests.project.stated.application")
    assert "E006" not in stated.stderr


def test_the_oauth_snippet_of_the_page_serves_its_users_and_refuses_others(users: None) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    snippet = page.split("```python\n# mysite/oauth.py\n")[1].split("```")[0]
    claims = {
        "client_id": "app",
        "scope": "orders:read",
        "exp": int(time.time()) + 60,
        "aud": "https://mcp.example.com/mcp",
    }
    tokens = {
        "right": {**claims, "sub": "ann"},
        "scopeless": {**claims, "sub": "ann", "scope": ""},
        "of-nobody": {**claims, "sub": "stranger"},
        "for-another-service": {**claims, "sub": "ann", "aud": "https://other.example.com"},
    }

    async def claims_of(token: str) -> Any:
        return tokens.get(token)

    names: dict[str, Any] = {"claims_of": claims_of}
    exec(snippet, names)
    server = MCPServer("x")
    server.add_tool(in_django.close_connections, "any")
    handler = StreamableHTTPHandler(
        server, auth=names["auth"], token_verifier=names["Verifier"](), user_for_token=names["user_for_token"]
    )

    async def work() -> dict[str, int]:
        transport = httpx2.ASGITransport(app=handler)  # type: ignore[arg-type]
        message = {**call(1, "any", modern=True), "method": "tools/list"}
        del message["params"]["name"], message["params"]["arguments"]
        headers = headers_of(message)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = {
                token: (await client.post("/mcp", json=message, headers={**headers, **bearer(token)})).status_code
                for token in (*tokens, "unknown")
            }
        await lifecycle.close()
        return found

    assert anyio.run(work) == {
        "right": 200,
        "scopeless": 403,
        "of-nobody": 401,
        "for-another-service": 401,
        "unknown": 401,
    }


class Verifier:
    async def verify_token(self, token: str) -> AccessToken | None:
        return None


def auth_settings(**options: Any) -> AuthSettings:
    return AuthSettings(issuer_url=AnyHttpUrl("https://issuer.example"), resource_server_url=None, **options)


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "public and login": ({"public": True, "login_required": True}, "has public and login_required, which contradict"),
    "public and auth": ({"public": True, "auth": Verifier()}, "has public and auth, which contradict each other"),
    "no verifiers": ({"auth": []}, "auth is an empty list"),
    "one that is no verifier": ({"auth": [Verifier(), "token"]}, r"auth is 'token'; it has to be"),
    "settings in a list": ({"auth": [auth_settings()]}, r"auth is AuthSettings\(.*; it has to be"),
    "settings alone": ({"auth": auth_settings()}, "needs a token_verifier beside it"),
    "a verifier alone": ({"token_verifier": Verifier()}, "alone, it is auth=... itself"),
    "scopes twice": (
        {"auth": auth_settings(), "token_verifier": Verifier(), "required_scopes": ["a"]},
        r"belongs in AuthSettings\(required_scopes",
    ),
    "scopes without tokens": ({"required_scopes": ["a"], "public": True}, "required_scopes needs auth="),
    "scopes as text": ({"auth": Verifier(), "required_scopes": "shop"}, "it has to be a list of scopes"),
    "no verifier": ({"auth": "token"}, r"auth is 'token'; it has to be"),
    "users without tokens": ({"public": True, "user_for_token": print}, "user_for_token needs auth="),
    "no session": ({"public": True, "max_sessions_per_user": 0}, "max_sessions_per_user is 0; it must be"),
    "text": ({"public": True, "max_streams_per_session": "9"}, "max_streams_per_session is '9'; it must be"),
    "no header": ({"public": True, "max_header_size": True}, "max_header_size is True; it must be"),
}


@pytest.mark.parametrize(("options", "told"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
@pytest.mark.parametrize("server", [MCPServer("x"), LowLevelServer("x")], ids=["high", "low"])
def test_a_contradiction_is_found_where_the_handler_is_made(options: dict[str, Any], told: str, server: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        StreamableHTTPHandler(server, **options)


def test_a_server_that_asks_for_tokens_itself_says_who_may_call() -> None:
    server = MCPServer("guarded", auth=auth_settings(), token_verifier=Verifier())
    assert StreamableHTTPHandler(server).access_problem is None
    with pytest.raises(ValueError, match="has public and the server's own auth, which contradict"):
        StreamableHTTPHandler(server, public=True)


# Logged in


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
def test_login_required_lets_in_who_is_logged_in(mode: str, site: AccessServers) -> None:
    assert site.who("/login", mode, **logged_in("ann")) == "ann, in the scope ann"
    assert site.who("/public", mode, **logged_in("ann")) == "ann, in the scope ann"
    assert site.who("/wrapped", mode, **logged_in("ann")) == "ann, in the scope ann"  # AuthMiddlewareStack(handler)
    assert site.who("/public", mode).startswith("AnonymousUser")


@pytest.mark.process
@pytest.mark.parametrize("server", ALL)
def test_login_required_gives_everybody_else_401_and_reads_nothing(server: str, tmp_path: Path, users: None) -> None:
    with serving_access_servers(server, tmp_path / "notes") as (_, address):
        for headers in ({}, {"Cookie": "sessionid=nonsense"}, bearer("ann-token")):
            for method in ("POST", "GET", "DELETE", "PATCH"):
                refused = httpx2.request(method, f"{address}/login", headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == 'Cookie realm="Django"'
                assert refused.content == b"Log in first.\n"


@pytest.mark.process
def test_login_required_without_a_middleware_that_knows_users_refuses_everybody_and_says_why(
    site: AccessServers,
) -> None:
    assert site.ask("/without-users", **logged_in("ann")).status_code == 401
    site.process.wait_for(
        r"login_required=True needs to know who is logged in\. Put the handler into \S+AuthMiddlewareStack"
    )


@pytest.mark.process
def test_a_call_with_a_cookie_from_another_origin_is_refused(site: AccessServers) -> None:
    for path in ("/login", "/public"):
        for origin in ("https://evil.example", "null", "http://127.0.0.1", "http://"):
            refused = site.ask(path, Origin=origin, **logged_in("ann"))
            assert refused.status_code == 403
            assert b"do not allow this Origin" in refused.content
        assert site.ask(path, Origin=site.address, **logged_in("ann")).status_code == 200


# Tokens


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["/token", "/oauth"])
def test_a_token_brings_its_django_user(path: str, mode: str, site: AccessServers) -> None:
    assert site.who(path, mode, **bearer("ann-token")) == "ann, in the scope ann"


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
def test_a_token_without_users_is_served_as_the_sdk_does(mode: str, site: AccessServers) -> None:
    told = site.who("/userless", mode, **bearer("nobody-token"))
    assert told.startswith("AnonymousUser, in the scope <mcp.server.auth.middleware.bearer_auth.AuthenticatedUser")


REFUSED = {
    "none": {},
    "nonsense": bearer("nonsense"),
    "an empty one": {"Authorization": "Bearer"},
    "another scheme": {"Authorization": "Basic YW5uOmFubg=="},
    "of an inactive user": bearer("gone-token"),
    "of no user": bearer("stranger-token"),
}


@pytest.mark.process
@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("path", ["/token", "/oauth"])
def test_without_a_token_that_counts_the_answer_is_401_with_its_challenge(
    path: str, modern: bool, headers: dict[str, str], site: AccessServers
) -> None:
    refused = site.ask(path, modern=modern, **headers)
    assert refused.status_code == 401
    challenge = refused.headers["www-authenticate"]
    assert challenge.startswith("Bearer")
    assert ('error="invalid_token"' in challenge) is headers.get("Authorization", "").startswith("Bearer")
    assert 'scope="shop"' in challenge
    document = 'resource_metadata="http://localhost/.well-known/oauth-protected-resource/oauth"'
    assert (document in challenge) is (path == "/oauth")


@pytest.mark.process
@pytest.mark.parametrize("path", ["/token", "/oauth"])
def test_a_token_without_the_scope_gets_403(path: str, site: AccessServers) -> None:
    refused = site.ask(path, modern=True, **bearer("ann-scopeless"))
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    assert 'scope="shop"' in refused.headers["www-authenticate"]
    assert site.ask(path, modern=True, **bearer("ann-token")).status_code == 200


@pytest.mark.process
def test_the_same_urlpatterns_serve_the_document_about_the_resource(site: AccessServers) -> None:
    document = httpx2.get(f"{site.address}/.well-known/oauth-protected-resource/oauth")
    assert document.status_code == 200
    assert document.json()["resource"] == "http://localhost/oauth"
    assert document.json()["authorization_servers"] == ["https://issuer.example/"]


@pytest.mark.process
@pytest.mark.parametrize("path", ["/token", "/oauth", "/userless"])
def test_a_verifier_that_raises_is_503_and_is_logged_without_the_token(path: str, site: AccessServers) -> None:
    token = f"boom-{path[1:]}-0123456789"
    refused = site.ask(path, modern=True, **bearer(token))
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.content == b"Try again later.\n"
    site.process.wait_for(r"RuntimeError: no such token: \[the token\]")
    assert token not in site.process.errors


@pytest.mark.process
def test_a_token_on_a_route_of_the_servers_own_is_looked_at_and_not_needed(site: AccessServers) -> None:
    url = f"{site.address}/health"
    assert httpx2.get(url).content == b"well"
    assert httpx2.get(url, headers=bearer("ann-token")).content == b"well"
    assert httpx2.get(url, headers=bearer("boom-health")).status_code == 503


@pytest.mark.process
def test_a_route_of_the_servers_own_has_the_rules_of_host_and_origin(site: AccessServers) -> None:
    url, elsewhere = f"{site.address}/health", {"Origin": "https://evil.example"}
    assert httpx2.get(url, headers={"Host": "evil.example"}).status_code == 421
    assert httpx2.get(url, headers=elsewhere).status_code == 200  # as the document about the resource may be read
    assert httpx2.post(url, headers={**elsewhere, **logged_in("ann")}).status_code == 403


def test_a_user_lookup_that_raises_is_503_too() -> None:
    class Accepting:
        async def verify_token(self, token: str) -> AccessToken | None:
            return AccessToken(token=token, client_id="c", scopes=[])

    def fails(token: AccessToken) -> Any:
        raise LookupError("no database")

    handler = StreamableHTTPHandler(MCPServer("x"), auth=Accepting(), user_for_token=fails)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer secret")],
        }
        await handler(scope, receive, send)

    anyio.run(work)
    assert sent[0]["status"] == 503
