"""The boundary to the MCP SDK: the only module that uses private names of the SDK, or sets attributes of its objects.

tests/test_sdk_boundary.py has a test for each of them, which fails when the SDK moves it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, ref

from mcp_serving.errors import InvalidServer
from mcp_serving.sdk_installation import sdk_problem

try:
    from mcp.server import runner
    from mcp.server._otel import OpenTelemetryMiddleware
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.server.mcpserver import MCPServer
    from mcp.server.subscriptions import ListenHandler
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp_types.methods import SPEC_CLIENT_METHODS, validate_client_request
    from opentelemetry.trace import INVALID_SPAN, ProxyTracerProvider, get_current_span, get_tracer_provider
    from pydantic import ValidationError
    from starlette.applications import Starlette
    from starlette.routing import Route

    from mcp_serving.param_headers import InputSchemaLookup, schemas_with_param_headers
except ImportError as error:
    raise ImportError(sdk_problem() or str(error)) from error

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from mcp.server.auth.provider import TokenVerifier
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.connection import Connection
    from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
    from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
    from mcp.server.session import ServerSession
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared._stream_protocols import ReadStream, WriteStream
    from mcp.shared.dispatcher import Outbound
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCRequest
    from pydantic import TypeAdapter

LISTEN = "subscriptions/listen"

SDKServer: TypeAlias = "MCPServer[Any] | LowLevelServer[Any]"

M = TypeVar("M", bound="FuncMetadata")


def low_level(server: object) -> LowLevelServer[Any]:
    """The low-level server underneath ``server``, which may be one itself.

    Raises:
        InvalidServer: ``server`` is neither of the SDK's two server classes.
    """
    if isinstance(server, MCPServer):
        inner = server._lowlevel_server
        _outer[inner] = ref(server)
        return inner
    if isinstance(server, LowLevelServer):
        return server
    kind = type(server)
    raise InvalidServer(
        f"The MCP server must be an MCPServer or a low-level Server of the official SDK (mcp 2.x), "
        f"not {kind.__module__}.{kind.__qualname__}."
    )


_outer: WeakKeyDictionary[LowLevelServer[Any], ref[MCPServer[Any]]] = WeakKeyDictionary()


def outer(server: LowLevelServer[Any]) -> SDKServer:
    """The server object of the project around a low-level server; without one, the low-level server itself."""
    found = _outer.get(server)
    return (found and found()) or server


def joined(server: LowLevelServer[Any], state: Any, first: ServerMiddleware[Any]) -> LowLevelServer[Any]:
    """A copy of the server for one transport, whose lifespan has been entered already.

    The SDK's middleware for spans, and its check of ``Mcp-Param-*`` headers, are left out where they have no effect.

    Args:
        server: shares its handlers and its name with the copy.
        state: of the entered lifespan. The lifespan of the copy returns it, and does nothing else.
        first: a middleware that runs before those of the server.
    """

    @asynccontextmanager
    async def entered_already(_: LowLevelServer[Any]) -> AsyncIterator[Any]:
        yield state

    view = copy.copy(server)
    view.lifespan = entered_already
    view.middleware = [first, *map(_with_optional_spans, server.middleware)]
    if server.get_tool_input_schema is not None:
        view.get_tool_input_schema = schemas_with_param_headers(server.get_tool_input_schema)
    view._session_manager = None  # otherwise each restart would keep the session managers of all earlier starts
    return view


class _OptionalSpans(OpenTelemetryMiddleware):
    """The SDK's middleware, which is left out where its span would have no effect.

    Without a tracer provider, a span is neither recorded nor sent. But if the client sends its trace in ``_meta``, the
    handler still runs in this trace, and can pass it on.
    """

    def __init__(self, makes_span: OpenTelemetryMiddleware) -> None:
        self._makes_span = makes_span

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if (
            isinstance(get_tracer_provider(), ProxyTracerProvider)
            and get_current_span() is INVALID_SPAN
            and (not ctx.meta or all(key.startswith(_NO_TRACE) for key in ctx.meta))
        ):
            return await call_next(ctx)
        return await self._makes_span(ctx, call_next)


_NO_TRACE = ("io.modelcontextprotocol/", "progress_token")
"""The prefixes of the keys of ``_meta`` that MCP defines. Any other key may belong to a trace."""


def _with_optional_spans(middleware: ServerMiddleware[Any]) -> ServerMiddleware[Any]:
    # A subclass always runs: it may do more than make spans.
    return _OptionalSpans(middleware) if type(middleware) is OpenTelemetryMiddleware else middleware


def add_within_span(server: LowLevelServer[Any], middleware: ServerMiddleware[Any]) -> None:
    """Add a middleware that runs within the span that the SDK makes of each message, and before all others."""
    places = [number for number, each in enumerate(server.middleware) if isinstance(each, OpenTelemetryMiddleware)]
    server.middleware.insert(places[0] + 1 if places else len(server.middleware), middleware)


_STREAM_FUNCTIONS = ("_has_modern_envelope", "_serve_legacy_stream", "_serve_modern_stream")


async def serve_streams(
    server: LowLevelServer[Any],
    opening: JSONRPCRequest,
    read_stream: ReadStream[SessionMessage | Exception],
    write_stream: WriteStream[SessionMessage],
) -> None:
    """Serve one client until ``read_stream`` ends, as ``Server.run`` does.

    ``Server.run`` has a task that passes each message on to the task that dispatches it. Without that task, a call
    takes one eighth less CPU time. If the SDK lacks one of its private functions, ``Server.run`` is used.

    Args:
        opening: the client's first request, which decides the protocol; ``read_stream`` returns it again.
    """
    options = server.create_initialization_options()
    if not all(hasattr(runner, name) for name in _STREAM_FUNCTIONS):
        await server.run(read_stream, write_stream, options)
        return
    async with server.lifespan(server) as state:
        shared: dict[str, Any] = {"lifespan_state": state, "raise_exceptions": False}
        if opening.method != "initialize" and runner._has_modern_envelope(opening.params):
            await runner._serve_modern_stream(server, read_stream, write_stream, **shared)
        else:
            await runner._serve_legacy_stream(
                server, read_stream, write_stream, session_id=None, init_options=options, **shared
            )


@contextmanager
def root_logger_unchanged() -> Iterator[None]:
    """Keep the constructor of the SDK's ``MCPServer`` from adding a handler to the root logger.

    Logging is set up by Django's ``LOGGING``.
    """
    root = logging.getLogger()
    placeholder = logging.NullHandler()  # the SDK adds none if there is one
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)


def listen_handler(server: LowLevelServer[Any]) -> ListenHandler | None:
    """The SDK's handler of ``subscriptions/listen``, which can end each stream with its result."""
    entry = server.get_request_handler(LISTEN)
    return entry.handler if entry is not None and isinstance(entry.handler, ListenHandler) else None


def connection(session: ServerSession) -> Connection:
    """The connection that all requests of a session share. It sends notifications, and has an exit stack."""
    return session._connection


def wrap_channels(session: ServerSession, wrap: Callable[[Outbound], Outbound]) -> None:
    """Replace the channels to the client: the channel of the request, and the channel of its connection.

    Args:
        session: the session of a request.
        wrap: returns the new channel. It may also get a channel that it has returned before.
    """
    session._request_outbound = wrap(session._request_outbound)  # type: ignore[assignment] # forwards the rest
    if session._connection.has_standalone_channel:
        session._connection.outbound = wrap(session._connection.outbound)


def takes(server: LowLevelServer[Any], request: ServerRequestContext[Any, Any]) -> bool:
    """Whether the parameters of a request are valid. If so, a ``ValidationError`` was raised by the handler's code."""
    entry = server.get_request_handler(request.method)
    try:
        if request.method in SPEC_CLIENT_METHODS:
            validate_client_request(request.method, request.protocol_version, request.params)
        if entry is not None:
            entry.params_type.model_validate(request.params or {}, by_name=False)
    except ValidationError:
        return False
    return True


def without_host_checks() -> TransportSecuritySettings:
    """The settings for a transport of the SDK whose requests have been checked already."""
    return TransportSecuritySettings(enable_dns_rebinding_protection=False)


def own_auth(server: SDKServer) -> tuple[AuthSettings | None, TokenVerifier | None]:
    """The server's own settings for bearer tokens, and its verifier."""
    if not isinstance(server, MCPServer):
        return None, None
    return server.settings.auth, server._token_verifier


def http_app(server: SDKServer, options: Mapping[str, Any], auth: AuthSettings | None) -> Starlette:
    """The SDK's application for everything but the MCP endpoint: custom routes, and the routes of ``auth``.

    It checks no tokens. The endpoint is the application of the server's session manager, which it has from now on.
    """
    more: dict[str, Any] = {}
    if isinstance(server, MCPServer):
        more = {
            "auth_server_provider": server._auth_server_provider,
            "custom_starlette_routes": server._custom_starlette_routes,
            "debug": server.settings.debug,
        }
    app = low_level(server).streamable_http_app(**{**more, **options}, auth=auth)
    endpoint = options.get("streamable_http_path", "/mcp")
    routes = [route for route in app.routes if isinstance(route, Route) and route.path != endpoint]
    return Starlette(debug=app.debug, routes=routes)


def hide_input_schemas(server: LowLevelServer[Any], is_hidden: Callable[[str], bool]) -> InputSchemaLookup:
    """Keep the SDK from comparing the ``Mcp-Param-*`` headers of some tools with their schemas.

    The SDK does that before any middleware, so its error would reveal a hidden tool.

    Returns:
        the lookup of the schemas of all tools.
    """
    lookup = server.get_tool_input_schema

    def of_all_tools(name: str) -> Mapping[str, Any] | None:
        return None if lookup is None else lookup(name)

    server.get_tool_input_schema = lambda name: None if is_hidden(name) else of_all_tools(name)
    return of_all_tools


def replace_tool_metadata(server: MCPServer[Any], name: str, replace: Callable[[FuncMetadata], M]) -> M:
    """Replace the SDK's description of a tool's arguments and result; returns the new one."""
    tool = server._tool_manager.get_tool(name)
    assert tool is not None
    metadata = tool.fn_metadata = replace(tool.fn_metadata)
    return metadata


def output_adapter(metadata: FuncMetadata) -> TypeAdapter[Any]:
    """The validator of a tool's result."""
    return metadata._output_adapter(metadata.output_model)


def answer_requests(session: ServerSession, answer: Callable[[Any], Awaitable[Any]]) -> None:
    """Let ``answer`` reply to the requests that a handler sends to its client. ``session`` belongs to one request."""

    async def send_request(request: Any, *_: Any, **__: Any) -> Any:
        return await answer(request)

    session.send_request = send_request  # type: ignore[method-assign]


def set_served(manager: StreamableHTTPSessionManager, server: LowLevelServer[Any]) -> None:
    """Have the sessions of ``manager`` served by ``server``."""
    manager.app = server


def open_sessions(manager: StreamableHTTPSessionManager) -> AbstractSet[str]:
    """The ids of the sessions that have not ended."""
    return manager._server_instances.keys()


def has_ended(manager: StreamableHTTPSessionManager, session_id: str) -> bool:
    """Whether the session does not exist (any more)."""
    session = manager._server_instances.get(session_id)
    return session is None or session.is_terminated


async def offers(server: SDKServer) -> dict[str, int | None]:
    """How many tools, resources (with templates) and prompts there are; None if only a client's request can tell."""
    if isinstance(server, MCPServer):
        return {
            "tools": len(await server.list_tools()),
            "resources": len(await server.list_resources()) + len(await server.list_resource_templates()),
            "prompts": len(await server.list_prompts()),
        }
    methods = {"tools": "tools/list", "resources": "resources/list", "prompts": "prompts/list"}
    return {kind: 0 if server.get_request_handler(method) is None else None for kind, method in methods.items()}


def function_of(server: SDKServer, kind: str, name: str) -> Callable[..., Any] | None:
    """The function behind a "tool", "resource", "template" or "prompt"; None if it has none.

    A low-level server has one handler for all its tools.
    """
    if not isinstance(server, MCPServer):
        return None
    found: Any
    if kind == "tool":
        found = server._tool_manager.get_tool(name)
    elif kind == "prompt":
        found = server._prompt_manager.get_prompt(name)
    elif kind == "template":
        templates = server._resource_manager.list_templates()
        found = next((each for each in templates if each.uri_template == name), None)
    else:
        found = next((each for each in server._resource_manager.list_resources() if str(each.uri) == name), None)
    return getattr(found, "fn", None)
