"""Completes the span that the SDK makes of each message, and measures operations and sessions.

The names are those of the semantic conventions of OpenTelemetry for MCP. Attributes of metrics have few values,
whatever a client sends: each combination of values takes memory for as long as the process runs.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from mcp_types.methods import SPEC_CLIENT_METHODS, SPEC_CLIENT_NOTIFICATION_METHODS
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from opentelemetry import metrics, trace
from opentelemetry.trace import StatusCode
from pydantic import ValidationError

from mcp_serving import conf, current_request, sdk
from mcp_serving.call_records import transport_of
from mcp_serving.users import user_of

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from opentelemetry.trace import Span

MAX_URI = 2048
"""Characters of a URI in a span."""

MAX_NAMES = 1000
"""The most names of tools and prompts of one low-level server that metrics can have."""

_BUCKETS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
_METHODS = SPEC_CLIENT_METHODS | SPEC_CLIENT_NOTIFICATION_METHODS
_NAMED = {"tools/call": ("tool", "gen_ai.tool.name"), "prompts/get": ("prompt", "gen_ai.prompt.name")}
_SESSION = "mcp_serving.otel"

_meter = metrics.get_meter("mcp_serving")
_operations = _meter.create_histogram(
    "mcp.server.operation.duration",
    unit="s",
    description="Duration of a request or notification, until its result is sent.",
    explicit_bucket_boundaries_advisory=_BUCKETS,
)
_sessions = _meter.create_histogram(
    "mcp.server.session.duration",
    unit="s",
    description="Duration of a session.",
    explicit_bucket_boundaries_advisory=_BUCKETS,
)


class OperationMiddleware:
    """An MCP middleware within the span of the SDK.

    Args:
        server: the MCP server.
    """

    def __init__(self, server: LowLevelServer[Any]) -> None:
        self._server = server
        self._names: set[tuple[str, str]] = set()
        """The names of tools and prompts that a low-level server has answered. An ``MCPServer`` knows its names."""

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        began = time.perf_counter()
        span = trace.get_current_span()
        network = _network(ctx)
        _measure_session(ctx, network)
        error: str | None = None
        try:
            if not span.is_recording():
                result = await call_next(ctx)
            else:
                span.set_attributes({**network, **_attributes_of_span(ctx)})
                result = await _with_exceptions(span, ctx, call_next)
            error = "tool_error" if _is_tool_error(ctx, result) else None
            return result
        except BaseException as raised:
            error = _error_type(raised)
            if error == "cancelled":  # the SDK does not note it
                span.set_attribute("error.type", error)
                span.set_status(StatusCode.ERROR)
            raise
        finally:
            attributes = {**network, **self._attributes(ctx, failed=error is not None)}
            if error is not None:
                attributes["error.type"] = error
                if error.lstrip("-").isdigit():
                    attributes["rpc.response.status_code"] = error
            _operations.record(time.perf_counter() - began, attributes)

    def _attributes(self, ctx: ServerRequestContext[Any, Any], *, failed: bool) -> dict[str, str]:
        is_known = ctx.method in _METHODS or self._server.get_request_handler(ctx.method) is not None
        attributes = {"mcp.method.name": ctx.method if is_known else "_OTHER"}
        if ctx.protocol_version in KNOWN_PROTOCOL_VERSIONS:
            attributes["mcp.protocol.version"] = ctx.protocol_version
        if ctx.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        kind, attribute = _NAMED.get(ctx.method, ("", ""))
        name = (ctx.params or {}).get("name")
        if kind and isinstance(name, str) and self._is_known(kind, name, failed=failed):
            attributes[attribute] = name
        return attributes

    def _is_known(self, kind: str, name: str, *, failed: bool) -> bool:
        server = sdk.outer(self._server)
        if server is not self._server:
            return sdk.function_of(server, kind, name) is not None
        if not failed and len(self._names) < MAX_NAMES:
            self._names.add((kind, name))
        return (kind, name) in self._names


async def _with_exceptions(span: Span, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Handle a message, and put the unexpected exceptions of a tool or resource into the span.

    The SDK answers them itself, so that no exception reaches its span.
    """
    kept = current_request.get().failures
    if kept is not None:  # the console collects them
        return await call_next(ctx)
    failures: list[BaseException] = []
    with current_request.updated(failures=failures):
        try:
            return await call_next(ctx)
        finally:
            for failure in failures:
                span.record_exception(failure)


def _attributes_of_span(ctx: ServerRequestContext[Any, Any]) -> dict[str, str]:
    """The attributes that the SDK does not set."""
    current = current_request.get()
    attributes = {}
    if current.session_nonce:
        attributes["mcp.session.id"] = current.session_nonce
    uri = (ctx.params or {}).get("uri")
    if isinstance(uri, str):
        attributes["mcp.resource.uri"] = uri[:MAX_URI]
    if conf.configuration().trace_users and (user := user_of(current, ctx.request)) is not None:
        attributes["user.id"] = str(user.pk)
    return attributes


def _network(ctx: ServerRequestContext[Any, Any]) -> dict[str, str]:
    if ctx.request is not None:
        version = str(ctx.request.scope.get("http_version", ""))
        known = {"1.0": "1.0", "1.1": "1.1", "2": "2", "2.0": "2", "3": "3"}.get(version)
        attributes = {"network.transport": "quic" if known == "3" else "tcp", "network.protocol.name": "http"}
        return attributes if known is None else {**attributes, "network.protocol.version": known}
    return {"network.transport": "pipe"} if transport_of(ctx, current_request.get()) == "stdio" else {}


def _measure_session(ctx: ServerRequestContext[Any, Any], network: dict[str, str]) -> None:
    """With the first message of a session, prepare to measure the session when it ends."""
    connection = sdk.connection(ctx.session)
    if not connection.has_standalone_channel or _SESSION in connection.state:
        return
    began = connection.state[_SESSION] = time.perf_counter()

    def record() -> None:
        attributes = dict(network)
        if connection.protocol_version in KNOWN_PROTOCOL_VERSIONS:
            attributes["mcp.protocol.version"] = connection.protocol_version
        _sessions.record(time.perf_counter() - began, attributes)

    connection.exit_stack.callback(record)


def _is_tool_error(ctx: ServerRequestContext[Any, Any], result: HandlerResult) -> bool:
    if ctx.method != "tools/call":
        return False
    return result.get("isError") is True if isinstance(result, dict) else getattr(result, "is_error", None) is True


def _error_type(error: BaseException) -> str:
    """The name of an error, as in the spans of the SDK."""
    if isinstance(error, MCPError):
        return str(error.error.code)
    if isinstance(error, ValidationError):
        return str(INVALID_PARAMS)
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__qualname__
