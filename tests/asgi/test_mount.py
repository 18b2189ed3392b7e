"""The handler in a router: which paths are its own, and what it serves there."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

from mcp_serving import InvalidServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.shutdown.in_flight import WATCH_SECONDS, InFlightRequest, InFlightRequests
from mcp_serving.web_servers.client_messages import HTTPMessages, Watch
from mcp_serving.web_servers.middleware import HTTPRequest, RequestTrackingMiddleware, http_request
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, call, serving_http, text_of
from tests.support.raw_http import Request, headers_of, post, status_of

NOT_ACCEPTABLE = 406  # the SDK's answer to a plain GET: it was reached
NOT_FOUND = 404  # Django's


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_http("--http-server", "tests.project.mounts.build_daphne") as (_, address):
        yield address


@pytest.mark.process
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("path", "tool", "arguments", "answer"),
    [
        ("mcp", "state", {}, "shared"),
        ("json/mcp", "state", {}, "shared"),
        ("stateless/mcp", "state", {}, "shared"),
        ("resumable/mcp", "state", {}, "shared"),
        ("wrapped/mcp", "state", {}, "shared"),
        ("other", "echo", {"text": "the other server"}, "the other server"),
        ("nested/mcp", "echo", {"text": "below a prefix"}, "below a prefix"),
    ],
)
def test_each_handler_of_a_router_serves_the_sdks_client(
    address: str, mode: str, path: str, tool: str, arguments: dict[str, Any], answer: str
) -> None:
    async def talk() -> None:
        async with Client(f"{address}/{path}", mode=mode) as client:
            assert tool in [found.name for found in (await client.list_tools()).tools]
            result = await client.call_tool(tool, arguments)
            assert result.content[0].text == answer  # type: ignore[union-attr]

    anyio.run(talk)


@pytest.mark.process
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/nested/mcp", "/nested/mcp/", "/other", "/other/"])
def test_a_path_answers_with_and_without_a_trailing_slash(address: str, path: str) -> None:
    assert status_of(address, path) == NOT_ACCEPTABLE


@pytest.mark.process
@pytest.mark.parametrize(
    "path",
    ["/mcpx", "/mcp/x", "//mcp", "/mcp//", "/mcp%0A", "/mcp/%0A", "/MCP", "/xmcp", "/nested//mcp", "/nested/mcpx"],
)
def test_every_other_path_is_djangos(address: str, path: str) -> None:
    assert status_of(address, path) == NOT_FOUND


@pytest.mark.process
def test_a_custom_route_of_the_server_is_served_below_the_routers_prefix(address: str) -> None:
    assert Request(address, "/nested/items/7").read() == b"item 7"
    assert status_of(address, "/items/7") == NOT_FOUND


@pytest.mark.process
def test_middleware_around_a_handler_sees_its_responses(address: str) -> None:
    for path, found in (("/wrapped/mcp", "was here"), ("/mcp", "")):
        answer = Request(address, path)
        answer.read()
        assert answer.header("x-middleware") == found


# The SDK's own authentication


@pytest.mark.process
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic cmlnaHQ="])
@pytest.mark.parametrize("modern", [True, False])
def test_a_guarded_server_is_never_open_without_a_token(address: str, authorization: str | None, modern: bool) -> None:
    message = call(1, "echo", modern=modern, text="secret")
    headers = headers_of(message) | ({"Authorization": authorization} if authorization else {})
    answer = Request(address, "/guarded/mcp", "POST", headers, message)
    assert answer.status == 401
    assert 'resource_metadata="http://testserver/.well-known/oauth-protected-resource/guarded/mcp"' in answer.header(
        "www-authenticate"
    )
    assert b"secret" not in answer.read()


@pytest.mark.process
def test_the_right_token_opens_a_guarded_server(address: str) -> None:
    async def talk() -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer right"}) as http_client,
            Client(streamable_http_client(f"{address}/guarded/mcp", http_client=http_client)) as client,
        ):
            result = await client.call_tool("echo", {"text": "let in"})
            assert result.content[0].text == "let in"  # type: ignore[union-attr]

    anyio.run(talk)


@pytest.mark.process
def test_the_protected_resource_metadata_is_served_by_the_same_urlpatterns(address: str) -> None:
    document = json.loads(Request(address, "/.well-known/oauth-protected-resource/guarded/mcp").read())
    assert document["resource"] == "http://testserver/guarded/mcp"
    assert document["authorization_servers"] == ["https://issuer.example/"]


# A person, and clients that ask for something else


@pytest.mark.process
def test_a_browser_is_shown_a_page_that_says_what_this_is(address: str) -> None:
    answer = Request(address, "/mcp", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert answer.status == 200
    assert answer.header("content-type").startswith("text/html")
    page = answer.read()
    assert b"test-server" in page
    assert b"streamable HTTP" in page


@pytest.mark.process
def test_a_browsers_head_request_gets_the_pages_headers_alone(address: str) -> None:
    answer = Request(address, "/mcp", "HEAD", {"Accept": "text/html"})
    assert answer.status == 200
    assert answer.header("content-type").startswith("text/html")
    assert answer.read() == b""


@pytest.mark.process
def test_a_clients_get_that_accepts_no_stream_is_refused_by_the_sdk(address: str) -> None:
    answer = Request(address, "/mcp", headers={"Accept": "application/json"})
    assert answer.status == NOT_ACCEPTABLE
    assert b"Client must accept text/event-stream" in answer.read()


@pytest.mark.process
def test_a_head_request_that_no_browser_sends_is_refused_by_the_sdk(address: str) -> None:
    answer = Request(address, "/mcp", "HEAD", {"Accept": "application/json"})
    assert answer.read() == b""
    assert answer.status == 405


# A handler by itself


@asynccontextmanager
async def in_process(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://testserver") as client:
        yield client


async def call_in_process(app: Any, text: str) -> str:
    message = call(1, "echo", modern=True, text=text)
    async with in_process(app) as client:
        response = await client.post("/", json=message, headers=headers_of(message))
        return text_of(response.json())


def echo_server(entered: list[str]) -> MCPServer[Any]:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        entered.append("entered")
        yield
        entered.append("left")

    server = MCPServer("echo-server", lifespan=lifespan)

    @server.tool()
    def echo(text: str) -> str:
        return text

    return server


def test_a_handler_is_a_whole_asgi_application() -> None:
    async def talk() -> None:
        assert await call_in_process(StreamableHTTPHandler(echo_server([])), "no router") == "no router"
        await lifecycle.close()

    anyio.run(talk)


def test_a_handler_that_was_closed_starts_again_with_the_next_request() -> None:
    entered: list[str] = []
    handler = StreamableHTTPHandler(echo_server(entered))

    async def talk() -> None:
        for text in ("first", "second", "third"):
            assert await call_in_process(handler, text) == text
            await lifecycle.close()

    anyio.run(talk)
    anyio.run(talk)  # in another event loop, too
    assert entered == ["entered", "left"] * 6


@pytest.mark.parametrize(("seconds", "watch"), [(0.0, Watch.NOBODY), (3 * WATCH_SECONDS, Watch.TASK)])
def test_a_request_is_freed_without_the_garbage_collector(seconds: float, watch: Watch) -> None:
    server = MCPServer[Any]("a server")

    @server.tool()
    async def echo(text: str) -> str:
        await anyio.sleep(seconds)
        return text

    handler = StreamableHTTPHandler(server, json_response=True)
    requests: list[weakref.ref[HTTPRequest]] = []
    watches: list[Watch] = []
    in_flight: list[InFlightRequest] = []  # as a session keeps the one that opened it

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        request = http_request(scope)
        assert request is not None
        requests.append(weakref.ref(request))
        in_flight.append(request.in_flight)
        await handler(scope, receive, send)
        watches.append(request.client.watch)

    async def talk() -> None:
        for text in ("first", "second"):
            assert await call_in_process(RequestTrackingMiddleware(noted, InFlightRequests()), text) == text
        await lifecycle.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(talk())
        assert watches == [watch, watch]
        assert [request() for request in requests] == [None, None]
        assert HTTPMessages not in map(type, gc.get_objects())
        assert [each.connection for each in in_flight] == [None, None]
    finally:
        gc.enable()


async def ask_and_leave(app: Any, message: dict[str, Any], session: str | None = None) -> list[Any]:
    """What is sent to a client that leaves a tenth of a second after the application has begun to wait for it."""
    headers = [(name.lower().encode(), value.encode()) for name, value in headers_of(message, session).items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"testserver"), *headers],
    }
    received = [{"type": "http.request", "body": json.dumps(message).encode()}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}

    async def send(answer: Any) -> None:
        sent.append(answer)

    await app(scope, receive, send)
    return sent


def test_who_leaves_ends_a_modern_call_but_nothing_that_it_shields_and_in_a_session_the_wait_alone() -> None:
    server = MCPServer[Any]("a server")
    seen: list[str] = []
    released, finished = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def save() -> str:
        try:
            with anyio.CancelScope(shield=True):
                await released.wait()
            seen.append("saved")
            await anyio.sleep(0.5)
            seen.append("finished")
            finished.set()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return ""

    async def talk() -> None:
        handler = StreamableHTTPHandler(server, json_response=True)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(3 * WATCH_SECONDS, released.set)  # the call has noticed it before
        assert await ask_and_leave(handler, call(1, "save", modern=True)) == []
        assert seen == ["saved", "cancelled"]
        seen.clear()
        released.clear()
        async with in_process(handler) as client:
            opened = await client.post("/", json=INITIALIZE, headers=headers_of(INITIALIZE))
            session = opened.headers["mcp-session-id"]
            await client.post("/", json=INITIALIZED, headers=headers_of(INITIALIZED, session))
        assert await ask_and_leave(handler, call(2, "save"), session) == []
        assert seen == []
        assert task.cancelling() == 0
        released.set()
        await asyncio.wait_for(finished.wait(), DEADLINE)
        assert seen == ["saved", "finished"]
        await lifecycle.close()

    asyncio.run(talk())


def test_what_was_imported_is_no_work_for_the_garbage_collector_while_a_server_runs() -> None:
    handler = StreamableHTTPHandler(echo_server([]))
    frozen: list[int] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        frozen.append(gc.get_freeze_count())
        return messages.pop(0)

    async def send(message: Any) -> None:
        assert message["type"].endswith("complete")

    asyncio.run(handler.lifespan({"type": "lifespan"}, receive, send))
    before, meanwhile = frozen
    assert meanwhile > before + 10_000  # 3.12 begins with some of its own
    assert gc.get_freeze_count() == 0


def test_event_loops_that_are_closed_are_not_kept() -> None:
    handler = StreamableHTTPHandler(echo_server([]))
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def talk() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        assert await call_in_process(handler, "text") == "text"
        await lifecycle.close()

    for _ in range(3):
        asyncio.run(talk())
    gc.collect()
    assert len([loop for loop in loops if loop() is not None]) <= 1


def test_an_option_that_the_sdk_does_not_know_is_an_error_at_construction() -> None:
    with pytest.raises(TypeError, match="nope"):
        StreamableHTTPHandler(MCPServer("a server"), nope=1)
    with pytest.raises(ValueError, match="session_idle_timeout"):
        StreamableHTTPHandler(MCPServer("a server"), session_idle_timeout=-1)


def test_what_is_no_server_of_the_sdk_is_an_error_at_construction() -> None:
    with pytest.raises(InvalidServer, match="official SDK"):
        StreamableHTTPHandler("a server")  # type: ignore[arg-type]


@pytest.mark.process
def test_a_body_over_the_limit_gets_413(address: str) -> None:
    answer = post(address, "/mcp", call(1, "size", modern=True, text="x" * (5 * 1024 * 1024)))
    answer.read()
    assert answer.status == 413
