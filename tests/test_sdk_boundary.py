"""What mcp_serving.sdk relies on beyond the SDK's public API: each test fails when the SDK moves it."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Annotated, Any

import anyio
import pytest
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.auth.settings import AuthSettings
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp.server.session import ServerSession
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse, ToolListChangedNotification, jsonrpc_message_adapter
from opentelemetry import trace
from pydantic import AnyHttpUrl, Field
from starlette.routing import Route

from mcp_serving import sdk
from tests.support.harness import INITIALIZE, MODERN_META, ROOT


def test_mcpserver_keeps_its_low_level_server_in_this_private_attribute() -> None:
    assert isinstance(MCPServer("x")._lowlevel_server, LowLevelServer)


def test_a_low_level_server_keeps_its_session_manager_in_this_private_attribute() -> None:
    server = LowLevelServer("x")
    server.streamable_http_app()
    assert server._session_manager is server.session_manager


def test_no_other_module_touches_a_private_attribute_of_the_sdk() -> None:
    for path in (ROOT / "mcp_serving").rglob("*.py"):
        if path.name != "sdk.py":
            found = re.findall(r"(?:mcp|manager|server|ctx)\._[a-z]\w*", path.read_text())
            assert [name for name in found if not name.startswith("self.")] == [], path


def test_a_session_manager_enters_the_lifespan_of_its_app_attribute() -> None:
    entered = []

    async def run() -> None:
        server = MCPServer("x")
        server.streamable_http_app()
        manager = server.session_manager
        assert isinstance(manager, StreamableHTTPSessionManager)

        @asynccontextmanager
        async def lifespan(_: Any) -> Any:
            entered.append(True)
            yield None

        view = sdk.joined(sdk.low_level(server), None, None)  # type: ignore[arg-type]
        view.lifespan = lifespan
        sdk.set_served(manager, view)
        async with manager.run():
            pass

    anyio.run(run)
    assert entered == [True]


def test_a_joined_server_shares_handlers_that_are_registered_later() -> None:
    server = LowLevelServer("x")
    view = sdk.joined(server, None, None)  # type: ignore[arg-type]

    async def handler(*_: Any) -> None: ...

    from mcp_types import RequestParams

    server.add_request_handler("custom/method", RequestParams, handler)
    assert view.get_request_handler("custom/method") is not None


def test_the_sdks_application_is_served_without_its_mcp_endpoint() -> None:
    for options in ({}, {"streamable_http_path": "/elsewhere"}):
        for server in (MCPServer("x"), LowLevelServer("x")):
            assert sdk.http_app(server, options, None).routes == []
            assert callable(server.session_manager.asgi_app)


@pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "found"])
def test_a_client_is_served_by_private_functions_of_the_sdk_or_by_server_run_if_they_have_moved(
    moved: bool, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if moved:
        monkeypatch.setattr(sdk, "_STREAM_FUNCTIONS", ("a_moved_name",))
    else:
        monkeypatch.delattr(LowLevelServer, "run")
    opening = jsonrpc_message_adapter.validate_python(
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": MODERN_META}}
        if modern
        else INITIALIZE
    )
    assert isinstance(opening, JSONRPCRequest)
    answers = []

    async def run() -> None:
        to_server, requests = anyio.create_memory_object_stream[SessionMessage | Exception](1)
        responses, from_server = anyio.create_memory_object_stream[SessionMessage](1)
        async with to_server, from_server, anyio.create_task_group() as group:
            group.start_soon(sdk.serve_streams, LowLevelServer("x"), opening, requests, responses)
            await to_server.send(SessionMessage(opening))
            answers.append((await from_server.receive()).message)
            to_server.close()

    anyio.run(run)
    (answer,) = answers
    assert isinstance(answer, JSONRPCResponse)
    assert ("protocolVersion" in answer.result) is not modern


def test_an_mcpserver_serves_subscriptions_with_the_handler_that_can_end_them() -> None:
    assert sdk.listen_handler(sdk.low_level(MCPServer("x"))) is not None
    assert sdk.listen_handler(LowLevelServer("x")) is None


def test_a_session_keeps_its_connection_in_this_private_attribute() -> None:
    connection = Connection.for_loop(None)  # type: ignore[arg-type]
    assert sdk.connection(ServerSession(None, connection)) is connection  # type: ignore[arg-type]


def test_a_session_sends_through_the_channels_in_these_attributes() -> None:
    class Channel:
        def __init__(self) -> None:
            self.sent: list[str] = []

        async def notify(self, method: str, params: Any, *_: Any) -> None:
            self.sent.append(method)

    old: Any = Channel()
    session = ServerSession(old, Connection.for_loop(old))
    replaced: list[Any] = []

    def wrap(channel: Any) -> Any:
        assert channel is old
        replaced.append(Channel())
        return replaced[-1]

    sdk.wrap_channels(session, wrap)
    anyio.run(session.send_notification, ToolListChangedNotification(), 1)
    anyio.run(session.send_notification, ToolListChangedNotification())
    assert [channel.sent for channel in (old, *replaced)] == [[], *[["notifications/tools/list_changed"]] * 2]


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
def test_a_session_sends_all_its_requests_through_this_method() -> None:
    sent = []

    async def answer(request: Any) -> None:
        sent.append(request.method)

    async def work() -> None:
        session = ServerSession(None, Connection.from_envelope("2026-07-28", None, None))  # type: ignore[arg-type]
        sdk.answer_requests(session, answer)
        await session.elicit_form("Why?", {"type": "object", "properties": {}})
        await session.elicit_url("Where?", "https://example.com", "1")
        await session.create_message([], max_tokens=1)
        await session.list_roots()

    anyio.run(work)
    assert sent == ["elicitation/create", "elicitation/create", "sampling/createMessage", "roots/list"]


def test_a_session_manager_keeps_its_open_sessions_in_this_private_attribute() -> None:
    server = MCPServer("x")
    server.streamable_http_app(transport_security=sdk.without_host_checks())
    manager = server.session_manager
    assert list(sdk.open_sessions(manager)) == []

    async def run() -> None:
        async with manager.run():
            await manager.handle_request(opening, receive, send)
            assert set(sdk.open_sessions(manager)) == {dict(started["headers"])[b"mcp-session-id"].decode()}

    started: dict[str, Any] = {}
    body = json.dumps(INITIALIZE).encode()
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    opening: Any = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
    bodies = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        return bodies.pop() if bodies else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.update(message)

    anyio.run(run)


def test_an_mcpserver_keeps_its_custom_routes_in_this_private_attribute() -> None:
    server = MCPServer("x")

    @server.custom_route("/health", methods=["GET"])
    async def health(request: Any) -> Any: ...

    auth = AuthSettings(
        issuer_url=AnyHttpUrl("https://issuer.example"),
        resource_server_url=AnyHttpUrl("https://site.example/mcp"),
        validate_token_resource=True,
    )
    paths = [route.path for route in sdk.http_app(server, {}, auth).routes if isinstance(route, Route)]
    assert paths == ["/.well-known/oauth-protected-resource/mcp", "/health"]


def test_an_mcpserver_keeps_its_token_verifier_in_this_private_attribute() -> None:
    auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.example"), resource_server_url=None)
    verifier = Verifier()
    assert sdk.own_auth(MCPServer("x", auth=auth, token_verifier=verifier)) == (auth, verifier)
    assert sdk.own_auth(MCPServer("x")) == sdk.own_auth(LowLevelServer("x")) == (None, None)


class Verifier:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def verify_token(self, token: str) -> None:
        self.seen.append(token)


def test_the_sdk_looks_up_input_schemas_in_an_attribute_of_the_low_level_server() -> None:
    server = MCPServer("x")

    @server.tool()
    def hidden(number: int) -> None: ...

    @server.tool()
    def visible(number: int) -> None: ...

    low_level = sdk.low_level(server)
    lookup = sdk.hide_input_schemas(low_level, lambda name: name == "hidden")
    for name in ("hidden", "visible"):
        assert (lookup(name) or {})["required"] == ["number"]
    assert low_level.get_tool_input_schema is not None
    assert low_level.get_tool_input_schema("hidden") is None
    assert low_level.get_tool_input_schema("visible") == lookup("visible")


def test_an_mcpserver_keeps_what_it_was_given_in_these_private_managers() -> None:
    server = MCPServer("x")

    @server.tool()
    def tool() -> str: ...  # type: ignore[empty-body]

    @server.prompt()
    def prompt() -> str: ...  # type: ignore[empty-body]

    @server.resource("x://resource")
    def resource() -> str: ...  # type: ignore[empty-body]

    @server.resource("x://template/{name}")
    def template(name: str) -> str: ...  # type: ignore[empty-body]

    named = {"tool": "tool", "prompt": "prompt", "resource": "x://resource", "template": "x://template/{name}"}
    found = {kind: sdk.function_of(server, kind, name) for kind, name in named.items()}
    assert {kind: function.__name__ for kind, function in found.items() if function} == {k: k for k in named}
    assert sdk.function_of(server, "tool", "other") is None
    assert sdk.function_of(LowLevelServer("x"), "tool", "tool") is None


def test_an_mcpserver_keeps_its_tools_in_this_private_attribute() -> None:
    server = MCPServer("x")

    @server.tool()
    def number() -> int:
        return 1

    class Replaced(FuncMetadata):
        def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
            seen.append(arguments_to_validate)
            return super().validate_arguments(arguments_to_validate)

    seen: list[dict[str, Any]] = []
    metadata = sdk.replace_tool_metadata(server, "number", lambda old: Replaced(**dict(old)))
    assert anyio.run(server.call_tool, "number", {}).structured_content == {"result": 1}  # type: ignore[union-attr]
    assert seen == [{}]
    assert sdk.output_adapter(metadata).validate_python({"result": 2}).result == 2


def test_a_server_has_the_middleware_that_makes_spans_and_others_can_run_within_it() -> None:
    server = LowLevelServer("x")
    names = [type(each).__name__ for each in server.middleware]
    assert names == ["OpenTelemetryMiddleware"]

    async def first(ctx: Any, call_next: Any) -> Any:
        return await call_next(ctx)

    async def within(ctx: Any, call_next: Any) -> Any:
        return await call_next(ctx)

    server.middleware.insert(0, first)
    server.middleware.append(first)
    sdk.add_within_span(server, within)
    assert [server.middleware[0], *server.middleware[2:]] == [first, within, first]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("meta", "expected"),
    [(None, 0), ({"progress_token": 1}, 0), ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, int(TRACE, 16))],
)
def test_without_a_tracer_provider_a_handler_runs_in_the_trace_that_its_client_sends(meta: Any, expected: int) -> None:
    view = sdk.joined(LowLevelServer("x"), None, None)  # type: ignore[arg-type]
    makes_spans = view.middleware[1]
    request: Any = SimpleNamespace(method="ping", params=None, request_id=1, meta=meta, protocol_version="2026-07-28")

    async def trace_of(_: Any) -> Any:
        return {"trace": trace.get_current_span().get_span_context().trace_id}

    async def run() -> Any:
        return await makes_spans(request, trace_of)

    assert anyio.run(run) == {"trace": expected}


def test_a_span_is_made_if_there_is_a_tracer_provider_or_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    async def make(self: object, ctx: Any, call_next: Any) -> Any:
        made.append(ctx.method)
        return await call_next(ctx)

    async def answer(_: Any) -> Any:
        return {}

    monkeypatch.setattr(OpenTelemetryMiddleware, "__call__", make)
    view = sdk.joined(LowLevelServer("x"), None, None)  # type: ignore[arg-type]

    def is_made(meta: Any) -> bool:
        made.clear()
        request: Any = SimpleNamespace(method="ping", meta=meta)

        async def run() -> Any:
            return await view.middleware[1](request, answer)

        assert anyio.run(run) == {}
        return bool(made)

    assert not is_made(None)
    assert not is_made({"progress_token": 1, "io.modelcontextprotocol/protocolVersion": "2026-07-28"})
    assert is_made({"traceparent": ""})
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=True))):
        assert is_made(None)
    monkeypatch.setattr(sdk, "get_tracer_provider", trace.NoOpTracerProvider)  # set after the start
    assert is_made(None)


def test_a_middleware_of_the_project_that_also_makes_spans_always_runs() -> None:
    class Own(OpenTelemetryMiddleware):
        """It may do more than to make spans."""

    server = LowLevelServer("x")
    server.middleware = [own := Own()]
    view = sdk.joined(server, None, None)  # type: ignore[arg-type]
    assert view.middleware[1:] == [own]


def test_the_sdk_gets_the_schemas_of_tools_with_param_headers_only() -> None:
    server = MCPServer("x")

    @server.tool()
    def plain(text: str) -> None: ...

    @server.tool()
    def regional(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> None: ...

    view = sdk.joined(sdk.low_level(server), None, None)  # type: ignore[arg-type]
    assert view.get_tool_input_schema is not None
    assert view.get_tool_input_schema("plain") is None
    assert (view.get_tool_input_schema("regional") or {})["required"] == ["region"]
