"""Rates of handlers and tools, in the process of the tests; see test_shared_rates.py for several processes."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import django
import httpx2
import pytest
from asgiref.sync import async_to_sync
from channels.routing import URLRouter
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer as SDKServer

from mcp_serving import MCPServer, Registry, StreamableHTTPHandler, signals
from mcp_serving.asgi import lifecycle
from mcp_serving.rate_limits import storage
from mcp_serving.testing import client
from tests.support.documents import DOCS, blocks
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, call
from tests.support.raw_http import headers_of
from tests.tools.test_confirmation import ask, text

django.setup()

LISTED = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}


@pytest.fixture(autouse=True)
def _unused_rates() -> Iterator[None]:
    storage.memory.forget()
    yield
    storage.memory.forget()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


class Tokens:
    """NAME-MORE is a token of NAME, who is a Django user unless the name is "service"."""

    async def verify_token(self, token: str) -> AccessToken:
        return AccessToken(token=token, client_id=token, scopes=[], subject=token.partition("-")[0])

    async def user_for_token(self, token: AccessToken) -> Any:
        return User(pk=len(token.subject or ""), username=token.subject)


class TokensAlone:
    verify_token = Tokens.verify_token


def server() -> MCPServer:
    made = MCPServer("shop")

    @made.read_tool()
    async def free() -> str:
        return "served"

    @made.read_tool(rate="2/h")
    async def rated() -> str:
        return "served"

    @made.write_tool(confirm="Write?", rate="1/h")
    async def write() -> str:
        return "written"

    return made


class Served:
    """An application, and how clients of several addresses ask it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def ask(
        self, message: dict[str, Any] | None = None, *, address: str = "192.0.2.1", token: str = "", **headers: str
    ) -> httpx2.Response:
        message = message or call(7, "free", modern=True)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(app=self.app, client=(address, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/mcp", json=message, headers={**headers_of(message), **headers})

    async def statuses(self, number: int, **options: Any) -> list[int]:
        return [(await self.ask(**options)).status_code for _ in range(number)]


@asynccontextmanager
async def serving(rate: str | None = "2/h", mcp: Any = None, **options: Any) -> AsyncIterator[Served]:
    if "auth" not in options:
        options["public"] = True
    handler = StreamableHTTPHandler(mcp or server(), json_response=True, rate=rate, **options)
    try:
        yield Served(URLRouter(handler.urlpatterns("mcp")))
    finally:
        await lifecycle.close()


# The handler


def test_a_request_above_the_rate_gets_429_with_retry_after_and_a_json_rpc_error() -> None:
    async def work() -> None:
        async with serving() as served:
            assert await served.statuses(2) == [200, 200]
            refused = await served.ask()
            assert refused.status_code == 429
            wait = int(refused.headers["retry-after"])
            assert 3500 < wait <= 3600
            error = refused.json()
            assert error["id"] == 7
            assert error["error"]["message"] == f"Too many calls: 2 per hour are allowed. Try again in {wait} seconds."

    run(work)


def test_a_caller_who_waits_for_as_long_as_retry_after_says_is_served() -> None:
    async def work() -> None:
        async with serving("1/s") as served:
            while (refused := await served.ask()).status_code == 200:
                pass
            assert refused.headers["retry-after"] == "1"
            while (await served.ask()).status_code == 429:
                await anyio.lowlevel.checkpoint()

    run(work)


def test_each_address_has_a_count_of_its_own_whatever_x_forwarded_for_says() -> None:
    async def work() -> None:
        async with serving() as served:
            assert await served.statuses(3) == [200, 200, 429]
            assert await served.statuses(1, **{"X-Forwarded-For": "192.0.2.9", "Forwarded": "for=192.0.2.9"}) == [429]
            assert await served.statuses(1, address="192.0.2.2") == [200]

    run(work)


def test_the_addresses_of_one_ipv6_network_share_a_count() -> None:
    async def work() -> None:
        async with serving() as served:
            addresses = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:0:1::"]
            assert [(await served.ask(address=each)).status_code for each in addresses] == [200, 200, 429]
            assert await served.statuses(1, address="2001:db8:0:1::1") == [200]
            assert await served.statuses(3, address="::ffff:192.0.2.7") == [200, 200, 429]
            assert await served.statuses(1, address="192.0.2.7") == [429]

    run(work)


def test_the_tokens_of_a_user_share_a_count_wherever_they_come_from() -> None:
    async def work() -> None:
        async with serving(auth=Tokens()) as served:
            assert await served.statuses(1, token="ann-1") == [200]
            assert await served.statuses(2, token="ann-2", address="192.0.2.8") == [200, 429]
            assert await served.statuses(1, token="robert-1") == [200]
            assert await served.statuses(1) == [401]

    run(work)


def test_a_token_without_a_django_user_has_a_count_of_its_own() -> None:
    async def work() -> None:
        async with serving(auth=TokensAlone()) as served:
            assert await served.statuses(3, token="ann-1") == [200, 200, 429]
            assert await served.statuses(1, token="ann-2") == [200]

    run(work)


def test_two_handlers_count_separately() -> None:
    async def work() -> None:
        async with serving() as served:
            await served.statuses(3)
        other = StreamableHTTPHandler(server(), public=True, json_response=True, rate="2/h")
        assert await Served(URLRouter([*other.urlpatterns("other"), *other.urlpatterns("mcp")])).statuses(1) == [200]
        await lifecycle.close()

    run(work)


def test_of_many_requests_at_once_no_more_pass_than_the_rate_allows() -> None:
    statuses: list[int] = []

    async def work() -> None:
        async with serving("5/h") as served, anyio.create_task_group() as group:

            async def ask_once() -> None:
                statuses.append((await served.ask()).status_code)

            for _ in range(30):
                group.start_soon(ask_once)

    run(work)
    assert sorted(statuses) == [200] * 5 + [429] * 25


def test_a_handler_for_a_server_of_the_sdk_has_a_rate_too() -> None:
    mcp = SDKServer("shop")
    mcp.tool("free")(lambda: "served")

    async def work() -> None:
        async with serving(mcp=mcp) as served:
            assert await served.statuses(3) == [200, 200, 429]

    run(work)


def test_streams_count_and_notifications_and_answers_do_not() -> None:
    async def work() -> None:
        async with serving("3/h", auth=TokensAlone()) as served:
            opened = await served.ask(INITIALIZE, token="ann")
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "token": "ann"}
            headers = {**headers_of(LISTED, session["Mcp-Session-Id"]), "Authorization": "Bearer ann"}
            transport = httpx2.ASGITransport(app=served.app, client=("192.0.2.1", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
                for _ in range(5):
                    for message in (INITIALIZED, {"jsonrpc": "2.0", "id": 99, "result": {}}):
                        assert (await http.post("/mcp", json=message)).status_code == 202
                assert [(await http.post("/mcp", json=LISTED)).status_code for _ in range(3)] == [200, 200, 429]
                refused = await http.get("/mcp")
                assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
                assert (await http.delete("/mcp")).status_code == 200

    run(work)


def test_a_body_that_is_too_large_gets_413_at_a_handler_with_a_rate() -> None:
    async def work() -> None:
        async with serving(max_request_body_size=1000) as served:
            assert (await served.ask(call(1, "free", modern=True, text="x" * 2000))).status_code == 413

    run(work)


# The tool


def test_a_call_above_the_rate_of_a_tool_is_told_when_to_try_again() -> None:
    async def work() -> None:
        async with client(server()) as session:
            assert [(await session.call_tool("rated", {})).is_error for _ in range(3)] == [False, False, True]
            told = text(await session.call_tool("rated", {}))
            assert told.startswith("rated: Too many calls: 2 per hour are allowed. Try again in 3"), told
            assert text(await session.call_tool("free", {})) == "served"

    run(work)


@pytest.mark.usefixtures("users")
def test_each_user_has_a_count_of_a_tool_also_without_http() -> None:
    mcp = server()
    ann, bob = User(pk=1, username="ann"), User(pk=2, username="bob")

    async def work() -> None:
        async with client(mcp, user=ann) as first, client(mcp, user=bob) as second, client(mcp, user=ann) as third:
            assert not (await first.call_tool("rated", {})).is_error
            assert not (await third.call_tool("rated", {})).is_error
            assert (await first.call_tool("rated", {})).is_error
            assert not (await second.call_tool("rated", {})).is_error

    run(work)


def test_the_rate_of_a_tool_holds_for_sessions_and_for_clients_of_2026_07_28_together() -> None:
    async def work() -> None:
        async with serving(None, auth=Tokens()) as served:
            opened = await served.ask(INITIALIZE, token="ann-1")
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            results = [
                await served.ask(call(1, "rated"), token="ann-1", **session),
                await served.ask(call(2, "rated", modern=True), token="ann-2"),
                await served.ask(call(3, "rated"), token="ann-1", **session),
                await served.ask(call(4, "rated", modern=True), token="robert-1"),
            ]
            assert [each.json()["result"]["isError"] for each in results] == [False, False, True, False]

    run(work)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_write_tool_counts_once_for_its_question_and_its_answer(mode: Any) -> None:
    async def work() -> None:
        async with client(server(), answers=[True, True], mode=mode) as session:
            assert text(await session.call_tool("write", {})) == "written"
            assert text(await session.call_tool("write", {})).startswith("write: Too many calls")

    run(work)


def test_a_question_that_is_repeated_without_end_is_counted_in_the_end() -> None:
    async def work() -> None:
        async with client(server(), answers=[True]) as session:
            asked = await ask(session, "write", _="")
            for _ in range(40):
                again = await session.session.call_tool(
                    "write", {"_": ""}, request_state=asked.request_state, allow_input_required=True
                )
                if getattr(again, "is_error", False):
                    break
            assert text(again).startswith("write: Too many calls")  # type: ignore[arg-type]

    run(work)


def test_the_answer_to_a_question_counts_at_the_handler_neither() -> None:
    async def work() -> None:
        async with serving("1/h") as served:
            message = call(1, "write", modern=True)
            capabilities = {"elicitation": {"form": {}}}
            message["params"]["_meta"] = {
                **message["params"]["_meta"],
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            }
            asked = (await served.ask(message)).json()["result"]
            (key,) = asked["inputRequests"]
            message["params"]["inputResponses"] = {key: {"action": "accept", "content": {}}}
            forged = {**message, "params": {**message["params"], "requestState": "x" * 40}}
            assert (await served.ask(forged)).status_code == 429
            message["params"]["requestState"] = asked["requestState"]
            assert (await served.ask(message)).json()["result"]["content"][0]["text"] == "written"
            assert (await served.ask(call(1, "free", modern=True))).status_code == 429

    run(work)


@pytest.mark.usefixtures("users")
def test_a_tool_that_the_user_may_not_use_has_no_rate_that_could_be_seen() -> None:
    mcp = MCPServer("shop")
    mcp.read_tool("hidden", permission="auth.view_user", rate="1/h")(lambda: "served")

    async def work() -> None:
        async with client(mcp) as session:
            for _ in range(3):
                assert text(await session.call_tool("hidden", {})) == "Unknown tool: hidden"

    run(work)


def test_a_tool_that_another_tool_calls_has_its_rate_too() -> None:
    mcp = server()

    @mcp.tool()
    async def outer() -> str:
        result: Any = await mcp.call_tool("rated", {})
        return str(result.content[0].text)

    async def work() -> None:
        async with client(mcp) as session:
            assert [(await session.call_tool("outer", {})).is_error for _ in range(3)] == [False, False, True]
        await mcp.call_tool("rated", {})  # outside of a request, nothing is counted
        await mcp.call_tool("rated", {})
        await mcp.call_tool("rated", {})

    run(work)


def test_each_client_for_tests_begins_to_count_from_zero() -> None:
    mcp = server()

    async def work() -> None:
        for _ in range(3):
            async with client(mcp) as session:
                assert not (await session.call_tool("rated", {})).is_error
                assert not (await session.call_tool("rated", {})).is_error

    run(work)


def test_a_registry_declares_a_rate_and_a_removed_tool_has_none() -> None:
    registry = Registry()
    registry.read_tool("rated", rate="1/h")(lambda: "served")
    mcp = MCPServer("shop")
    mcp.include(registry)

    async def work() -> None:
        async with client(mcp) as session:
            assert [(await session.call_tool("rated", {})).is_error for _ in range(2)] == [False, True]
            mcp.remove_tool("rated")
            mcp.read_tool("rated")(lambda: "served")
            assert not (await session.call_tool("rated", {})).is_error

    run(work)


# Mistakes


@pytest.mark.parametrize(
    "rate", ["10/x", "", "0/m", "-1/m", "10", "10 / m", "1/0m", "1.5/s", "٣/m", 0, 10, -1, True, []]
)
def test_a_bad_rate_is_one_clear_line_where_it_is_given(rate: Any) -> None:
    def function() -> None:
        pass

    places: dict[str, Callable[[], Any]] = {
        "the StreamableHTTPHandler": lambda: StreamableHTTPHandler(MCPServer(), rate=rate),
        "tool 'function'": lambda: MCPServer().tool(rate=rate)(function),
        "tool 'reads'": lambda: MCPServer().read_tool("reads", rate=rate)(function),
        "tool 'writes'": lambda: MCPServer().write_tool("writes", confirm="?", rate=rate)(function),
        "tool 'added'": lambda: MCPServer().add_tool(function, "added", rate=rate),
        "read_tool 'later'": lambda: Registry().read_tool("later", rate=rate)(function),
        "write_tool 'later'": lambda: Registry().write_tool("later", confirm="?", rate=rate)(function),
    }
    for name, declare in places.items():
        with pytest.raises(ValueError) as refused:
            declare()
        assert str(refused.value).startswith(f"The rate of {name} is {rate!r}; it must be a number of calls per")
        assert "\n" not in str(refused.value)


def problems(number: str, **given: Any) -> list[str]:
    with override_settings(MCP_SERVING={"SERVER": "tests.project.rated_asgi.server", **given}, ASGI_APPLICATION=None):
        found = run_checks(tags=["mcp_serving"], include_deployment_checks=True)
    return [each.msg for each in found if each.id == f"mcp_serving.{number}"]


def test_the_check_finds_a_storage_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems("E009") == []
    assert problems("E009", RATE_LIMIT_STORAGE="redis://:secret@127.0.0.1:6379/0") == []
    (unknown,) = problems("E009", RATE_LIMIT_STORAGE="reddis://:secret@127.0.0.1:6379/0")
    assert unknown.startswith("MCP_SERVING['RATE_LIMIT_STORAGE'] names a storage 'reddis' that cannot be made: ")
    assert "secret" not in unknown
    monkeypatch.setitem(sys.modules, "limits", None)
    (missing,) = problems("E009", RATE_LIMIT_STORAGE="redis://127.0.0.1:6379/0")
    assert missing.endswith("needs limits: install it with pip install 'mcp-serving[limits]'.")


def test_a_handler_with_a_rate_refuses_a_storage_that_cannot_be_made() -> None:
    with override_settings(MCP_SERVING={"RATE_LIMIT_STORAGE": "reddis://127.0.0.1:6379/0"}):
        StreamableHTTPHandler(MCPServer())
        with pytest.raises(ImproperlyConfigured, match="RATE_LIMIT_STORAGE"):
            StreamableHTTPHandler(MCPServer(), rate="1/m")
        with pytest.raises(ImproperlyConfigured, match="RATE_LIMIT_STORAGE"):
            StreamableHTTPHandler(server())


def test_the_check_warns_of_several_workers_that_count_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems("W006") == []
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    (warning,) = problems("W006")
    assert warning.startswith("WEB_CONCURRENCY=4 starts several workers")
    assert problems("W006", RATE_LIMIT_STORAGE="redis://127.0.0.1:6379/0") == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"RATE_LIMIT_STORAGE": 7}, "MCP_SERVING['RATE_LIMIT_STORAGE']: 7 is not a storage; it must be 'memory://'"),
        ({"RATE_LIMIT_STORAGE": "user:secret@host"}, "MCP_SERVING['RATE_LIMIT_STORAGE']: A value without a scheme"),
        ({"RATE_LIMIT_ON_OUTAGE": True}, "MCP_SERVING['RATE_LIMIT_ON_OUTAGE']: True must be 'allow' or 'refuse'."),
        ({"TRACE_USERS": "no"}, "MCP_SERVING['TRACE_USERS']: 'no' must be True or False."),
    ],
)
def test_a_bad_setting_is_one_line(given: dict[str, Any], told: str) -> None:
    (problem,) = problems("E001", **given)
    assert problem.startswith(told)
    assert "secret" not in problem


# Memory


def test_a_flood_of_addresses_does_not_grow_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_KEYS", 50)

    async def work() -> None:
        async with serving() as served:
            for number in range(200):
                await served.ask(address=f"192.0.2.{number}")
                assert len(storage.memory._windows) <= 50
            assert await served.statuses(2, address="192.0.2.199") == [200, 429]

    run(work)


def test_refused_requests_are_logged_without_the_address(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving("1/h") as served:
            await served.statuses(2)

    with caplog.at_level(logging.INFO, "mcp_serving"):
        run(work)
    assert [each for each in caplog.messages if "Refused" in each] == [
        "Refused a request for '/mcp': its caller has reached the rate of 1 per hour."
    ]


def test_a_refused_call_has_a_record_with_the_reason_rate() -> None:
    records: list[Any] = []

    def receive(make_record: Any, sender: Any, params: Any) -> None:
        record = make_record()
        records.append((sender.name, record.name, str(record.outcome), record.reason))

    async def work() -> None:
        async with serving("3/h") as served:
            for _ in range(4):
                await served.ask(call(1, "rated", modern=True))

    signals.listeners.append(receive)
    try:
        run(work)
    finally:
        signals.listeners.remove(receive)
    refused = ("shop", "rated", "refused", "rate")
    assert records == [("shop", "rated", "ok", "")] * 2 + [refused] * 2


def test_the_tool_on_the_page_answers_as_the_page_says() -> None:
    codes = blocks(DOCS / "howto" / "rate_limits.md")
    names: dict[str, Any] = {}
    exec(next(code for language, code in codes if language == "python"), names)
    (shown,) = (code for language, code in codes if language == "text")

    async def work() -> None:
        async with client(names["server"]) as session:
            results = [await session.call_tool("search", {"text": "x"}) for _ in range(11)]
            assert [each.is_error for each in results] == [False] * 10 + [True]
            pattern = re.escape(shown.strip()).replace("42", r"\d+")
            assert re.fullmatch(pattern, text(results[-1]))

    run(work)
