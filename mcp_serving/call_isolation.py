"""An exception of a handler ends its own call only, and its text stays on the server."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pydantic_core
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_serving import current_request, sdk
from mcp_serving.logs import describe

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.shared.dispatcher import Outbound

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def isolate_request(
    server: LowLevelServer[Any], ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Handle one MCP request. The client can read the text of an ``MCPError``, and of no other exception.

    The SDK sends the text of other exceptions to clients up to 2025-11-25. It does not log a ``ValidationError``: it
    takes each for an error of the request's parameters, wherever it comes from.
    """
    checks_text = ctx.request is not None and ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    if checks_text:
        sdk.wrap_channels(ctx.session, WritableMessages.through)
    try:
        result = await isolate_call(call_next(ctx))
        if checks_text:
            _must_be_json(ctx, result)
        return result
    except MCPError as error:
        if checks_text:
            _must_be_json(ctx, error.error)
        raise
    except Exception as error:
        if isinstance(error, ValidationError) and not sdk.takes(server, ctx):
            raise
        current_request.note_failure(error)
        logger.exception("%s failed.", describe(ctx.method, ctx.params))
        raise MCPError(INTERNAL_ERROR, "Internal server error") from error


def _must_be_json(ctx: ServerRequestContext[Any, Any], response: object) -> None:
    """Check the response to a request over HTTP of a client up to 2025-11-25.

    The SDK finds out only when it writes the response, and then loses the call: its client gets an empty stream, or an
    error without an id. For other clients it escapes a lone surrogate, and over stdio this package checks each line.

    Raises:
        MCPError: it cannot be written as JSON, for example because of a lone surrogate.
    """
    try:
        size = len(pydantic_core.to_json(response))
    except ValueError as error:
        logger.error("The response to %s cannot be written as JSON: %s", describe(ctx.method, ctx.params), error)
        raise MCPError(INTERNAL_ERROR, "The response cannot be written as JSON.") from error
    if (call := current_request.get().call) is not None:
        call.answer_size = size


class WritableMessages:
    """A channel to a client that makes each message writable as JSON: a lone surrogate in a text becomes ``?``.

    Otherwise the SDK fails when it writes a progress message, a log message or a question, and ends the stream on
    which the client waits for its answer.
    """

    def __init__(self, channel: Outbound) -> None:
        self._channel: Any = channel

    @classmethod
    def through(cls, channel: Outbound) -> Outbound:
        return channel if isinstance(channel, cls) else cls(channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def notify(self, method: str, params: Any, *options: Any) -> None:
        await self._channel.notify(method, _writable(params), *options)

    async def send_raw_request(self, method: str, params: Any, *options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._channel.send_raw_request(method, _writable(params), *options)
        return answer

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        await self._channel.progress(progress, total, _writable(message))


def _writable(value: Any) -> Any:
    try:
        pydantic_core.to_json(value)
    except ValueError:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


async def isolate_call(call: Awaitable[T]) -> T:
    """Turn everything that a handler raises into an ``Exception``, which ends its own call only.

    A ``BaseException``, for example of ``sys.exit()``, would end the SDK's loop or session manager, and with it every
    other call. So would a ``CancelledError`` that no cancellation of this call has caused: awaiting a task that was
    cancelled is enough.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if anyio.current_effective_deadline() == -math.inf:  # this call is cancelled
            raise
        task = asyncio.current_task()
        request = current_request.get().in_flight
        if task is not None and task.cancelling() and request is not None and request.runs_in(task):
            raise  # the task of an HTTP request: an ASGI middleware cancels it, with asyncio.timeout() for example
        while task is not None and task.cancelling():
            task.uncancel()
        raise RuntimeError("The handler was cancelled from within.") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"The handler raised {type(error).__name__}, which is no Exception.") from error
