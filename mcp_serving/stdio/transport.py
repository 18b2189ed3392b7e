from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Self

import anyio
import pydantic_core
from anyio.abc import AsyncResource
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

from mcp_serving import current_request
from mcp_serving.runtime import describe
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import CANCELLED_SECONDS, InFlightRequest, InFlightRequests
from mcp_serving.stdio.streams import Lines, Output, StandardStreams

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer

logger = logging.getLogger(__name__)


class StdioTransport:
    """One MCP server on standard input and output.

    Each request is in the in_flight from the moment it was read until its answer was written, so that a
    shutdown can wait for it. ``on_end`` is called, once and with the reason, when the client has closed
    standard input or is gone; what was read before is still answered until ``close``.
    """

    def __init__(self, streams: StandardStreams, in_flight: InFlightRequests, on_end: Callable[[str], None]) -> None:
        self.is_terminal = streams.is_terminal
        self._wire = _Wire(streams, in_flight, on_end)
        self._serving: asyncio.Task[None] | None = None

    def start(self, server: LowLevelServer[Any]) -> None:
        serving = server.run(self._wire, _Outbound(self._wire), server.create_initialization_options())
        self._serving = asyncio.create_task(serving, name="MCP over stdio")
        self._serving.add_done_callback(lambda _: self._wire.served())

    async def close(self, deadline: Deadline, share: float) -> None:
        """Stop serving: cancels what is still running, and gives up on threads that nobody can cancel."""
        self._wire.close()
        if self._serving is None:
            self._wire.give_up_writing()
            return
        with deadline.scope(share):
            await asyncio.wait({self._serving})
        self._wire.give_up_writing()
        if not self._serving.done():
            self._serving.cancel()
            with anyio.move_on_after(CANCELLED_SECONDS):
                await asyncio.wait({self._serving})
        if self._wire.broken:
            raise RuntimeError("Serving over stdio had ended by itself.") from _error_of(self._serving)
        if error := _error_of(self._serving):
            raise error


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


class _Wire(AsyncResource):
    """Reads messages for the SDK, writes its messages, and knows which requests are not answered yet.

    It is the ``ReadStream`` that the SDK iterates: a message is read only when the SDK wants one.
    """

    def __init__(self, streams: StandardStreams, in_flight: InFlightRequests, on_end: Callable[[str], None]) -> None:
        self.last_context: Context | None = None
        """The context that the SDK runs the handler of the latest message in."""
        self._ledger = in_flight
        self._on_end = on_end
        self._unanswered: dict[RequestId, deque[InFlightRequest]] = {}
        self._questions: set[RequestId] = set()
        self._unanswerable: deque[SessionMessage] = deque()
        self._woken = asyncio.Event()
        self._ended = False
        self._closed = False
        self.broken = False
        """Whether the SDK has ended without having been told to."""
        self._end_of_input = (
            "standard input is /dev/null, where no client can be (for a service, the transport is http)"
            if streams.is_null
            else "standard input was closed"
        )
        # From here on: a client that leaves before the server has started is noticed too.
        self._output = Output(streams.stdout, self._lost)
        self._lines = Lines(streams.stdin, self._input_ended)

    # Reading

    async def receive(self) -> SessionMessage:
        while not self._closed:
            if not self._output.has_room.is_set():
                # A client that does not read its answers gets no more requests served until it does.
                await self._output.has_room.wait()
            elif self._unanswerable:
                self.last_context = copy_context()
                return self._unanswerable.popleft()
            elif (line := self._lines.next()) is not None:
                if (message := await self._accept(line)) is not None:
                    return message
            elif self._lines.at_end:
                self._input_ended()
                await self._woken.wait()
                self._woken.clear()
            else:
                await self._lines.more()
        raise anyio.EndOfStream

    async def _accept(self, line: bytes) -> SessionMessage | None:
        """The message on this line; None if there is none, or one that is answered here."""
        if not line.strip():
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self.send(_refusal(line))
            return None
        self.last_context = copy_context()
        if not isinstance(message, JSONRPCRequest):
            if isinstance(message, JSONRPCNotification) and "id" in pydantic_core.from_json(line):
                # A request all the same: taken for a notification, it would never have an answer.
                await self.send(_refusal(line))
                return None
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                self._questions.discard(message.id)
            return SessionMessage(message)
        if self._ledger.draining:
            await self.send(_error(message.id, CONNECTION_CLOSED, "The server is shutting down."))
            return None
        exchange = self._ledger.open(describe(message.method, message.params))
        self._unanswered.setdefault(message.id, deque()).append(exchange)
        self.last_context.run(current_request.update, in_flight=exchange)

        async def unanswered() -> None:
            self._answered(message.id)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))

    def _input_ended(self) -> None:
        self._output.check()
        if self._lines.exhausted:
            self._end(self._end_of_input)

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        for request_id in self._questions:
            self._cannot_be_answered(request_id)
        self._on_end(reason)

    def _cannot_be_answered(self, request_id: RequestId) -> None:
        """Tell a handler that its question to the client will have no answer, rather than let it wait."""
        self._unanswerable.append(
            SessionMessage(_error(request_id, CONNECTION_CLOSED, "The client has closed the connection."))
        )
        self._woken.set()

    def close(self) -> None:
        """No more messages: the SDK ends, and cancels the handlers that still run."""
        self._closed = True
        self._woken.set()
        self._output.has_room.set()
        self._lines.close()

    # Writing

    async def send(self, message: JSONRPCMessage) -> None:
        line = _line(message)
        if isinstance(message, JSONRPCRequest):
            self._questions.add(message.id)
            if self._ended:
                self._cannot_be_answered(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._questions.discard(cancelled_request_id_from_params(message.params))
        # Where the other side is gone, `_lost` has been told.
        with suppress(OSError):
            await self._output.write(line)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._answered(message.id)

    def served(self) -> None:
        """The SDK has ended: because it was told to, or for a reason of its own, which loses calls."""
        if self._closed:
            return
        self.broken = True
        self._give_up_answering()
        self._end("serving over stdio has ended by itself")

    def give_up_writing(self) -> None:
        """Nobody waits any longer for a client that does not read."""
        self._output.close()

    def _answered(self, request_id: RequestId | None) -> None:
        if request_id is None or request_id not in self._unanswered:
            return
        exchanges = self._unanswered[request_id]
        exchanges.popleft().close()
        if not exchanges:
            del self._unanswered[request_id]

    def _lost(self, error: OSError) -> None:
        """Nobody reads the answers any more: nothing that runs for this client is worth waiting for."""
        reason = f"the client no longer reads standard output ({error.strerror})"
        if self._unanswered and (self._ended or self._ledger.draining):  # nobody would ask for the reason
            logger.warning("%s%s: its calls are cancelled.", reason[0].upper(), reason[1:])
        self._give_up_answering()
        self._end(reason)

    def _give_up_answering(self) -> None:
        """Cancel what still runs for this client, and let nobody wait for its answer."""
        for exchanges in self._unanswered.values():
            for exchange in exchanges:
                exchange.cancel()
                exchange.close()
        self._unanswered.clear()

    # What else the SDK asks of a stream

    async def aclose(self) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Outbound(AsyncResource):
    """The ``WriteStream`` of a wire: closing it leaves standard output to ``StandardStreams.release``."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    async def send(self, item: SessionMessage, /) -> None:
        await self._wire.send(item.message)

    async def aclose(self) -> None:
        pass


def _line(message: JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except (ValueError, TypeError) as error:  # a lone surrogate, or what JSON has no form for
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            raise
        logger.error("The answer to request %r cannot be written as JSON: %s", message.id, error)
        return _line(_error(message.id, INTERNAL_ERROR, "The answer cannot be written as JSON."))


def _refusal(line: bytes) -> JSONRPCError:
    """The JSON-RPC error for a line that is no JSON-RPC message."""
    try:
        content = pydantic_core.from_json(line)
    except ValueError:
        return _error(None, PARSE_ERROR, "Parse error: the line is not JSON.")
    request_id = None
    # Only what was meant as a request has an id to answer to; in an answer the id is one of ours.
    if isinstance(content, dict) and "method" in content and type(content.get("id")) in (int, str):
        request_id = content["id"]
    return _error(request_id, INVALID_REQUEST, "Invalid request: the line is not one JSON-RPC message.")


def _error(request_id: RequestId | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
