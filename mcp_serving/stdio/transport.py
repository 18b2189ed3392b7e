"""One MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio.abc import AsyncResource
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcp_serving import current_request, sdk
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import CANCELLED_SECONDS, InFlightRequest, InFlightRequests
from mcp_serving.stdio.messages import InvalidLineError, error_response, line_from, message_from
from mcp_serving.stdio.streams import Lines, Output, StandardStreams

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer

logger = logging.getLogger(__name__)

EARLY_MESSAGES = 8
"""Messages before the client's first request that are kept. Later ones are dropped. The SDK keeps 8, too."""


class StdioTransport:
    """One MCP server on standard input and output.

    Each request is in flight from the moment it was read until its response was written, so that a shutdown can wait
    for it. ``on_end`` is called once, with the reason, when the client has closed standard input or has gone. The
    requests that were read before are still answered, until ``close``.
    """

    def __init__(self, streams: StandardStreams, in_flight: InFlightRequests, on_end: Callable[[str], None]) -> None:
        self.is_terminal = streams.is_terminal
        self._connection = _Connection(streams, in_flight, on_end)
        self._serving: asyncio.Task[None] | None = None

    def start(self, server: LowLevelServer[Any]) -> None:
        self._serving = asyncio.create_task(self._serve(server), name="MCP over stdio")
        self._serving.add_done_callback(lambda _: self._connection.on_sdk_ended())

    async def _serve(self, server: LowLevelServer[Any]) -> None:
        if (opening := await self._connection.first_request()) is not None:
            await sdk.serve_streams(server, opening, self._connection, _Outbound(self._connection))

    async def close(self, deadline: Deadline, share: float) -> None:
        """Stop serving. Calls that still run are cancelled; threads that cannot be cancelled are not waited for."""
        failed = self._serving is not None and self._serving.done()  # nobody has told it to end
        self._connection.close()
        if self._serving is None:
            self._connection.discard_output()
            return
        with deadline.scope(share):
            await asyncio.wait({self._serving})
        self._connection.discard_output()
        if not self._serving.done():
            self._serving.cancel()
            with anyio.move_on_after(CANCELLED_SECONDS):
                await asyncio.wait({self._serving})
        if failed:
            raise RuntimeError("Serving over stdio had ended by itself.") from _error_of(self._serving)
        if error := _error_of(self._serving):
            raise error


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


class _State(Enum):
    OPEN = auto()
    """The client sends messages."""
    ENDED = auto()
    """No more messages come from the client; the requests that were read are still answered."""
    CLOSED = auto()
    """The SDK gets no more messages."""


class _Connection(AsyncResource):
    """Reads the client's messages for the SDK, and writes the SDK's messages.

    It is the ``ReadStream`` that the SDK iterates. A message is read only when the SDK asks for one.
    """

    def __init__(self, streams: StandardStreams, in_flight: InFlightRequests, on_end: Callable[[str], None]) -> None:
        self.last_context: Context | None = None
        """The context in which the SDK handles the latest message."""
        self._state = _State.OPEN
        self._in_flight = in_flight
        self._on_end = on_end
        self._client_requests = _ClientRequests()
        self._server_requests = _ServerRequests()
        self._early: deque[tuple[Context, SessionMessage]] = deque()
        self._end_of_input = (
            "standard input is /dev/null, where no client can be (a service uses the transport http)"
            if streams.is_null
            else "standard input was closed"
        )
        # Watched from now on, so that a client that leaves while the server starts is noticed.
        self._output = Output(streams.stdout, self._lost)
        self._lines = Lines(streams.stdin, self._input_ended)

    # Reading

    async def first_request(self) -> JSONRPCRequest | None:
        """The client's first request; None if the client leaves before it sends one.

        ``receive`` then returns the earlier messages and this request.
        """
        early: list[tuple[Context, SessionMessage]] = []
        async for item in self:
            request = item.message if isinstance(item.message, JSONRPCRequest) else None
            if request is not None or len(early) < EARLY_MESSAGES:
                assert self.last_context is not None
                early.append((self.last_context, item))
            if request is not None:
                self._early.extend(early)
                return request
        return None

    async def receive(self) -> SessionMessage:
        if self._early:
            self.last_context, early = self._early.popleft()
            return early
        if self._lines.has_data:
            await asyncio.sleep(0)  # gives earlier requests a turn: their responses may fill the output
        while self._state is not _State.CLOSED:
            if not self._output.has_room.is_set():
                # The client does not read its responses: no more requests are read until it does.
                await self._output.has_room.wait()
            elif (failure := self._server_requests.next_failure()) is not None:
                self.last_context = copy_context()
                return SessionMessage(failure)
            elif (line := self._lines.next()) is not None:
                if (message := await self._accept(line)) is not None:
                    return message
            elif self._lines.at_end:
                self._input_ended()
                await self._server_requests.wait()
            else:
                await self._lines.more()
        raise anyio.EndOfStream

    async def _accept(self, line: bytes) -> SessionMessage | None:
        """The message on this line for the SDK; None if it has no message, or one that is answered here."""
        if not line.strip():
            return None
        try:
            message = message_from(line)
        except InvalidLineError as invalid:
            await self._refuse(invalid.response)
            return None
        self.last_context = copy_context()
        if not isinstance(message, JSONRPCRequest):
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                self._server_requests.forget(message.id)
            return SessionMessage(message)
        if self._in_flight.draining:
            await self._refuse(error_response(message.id, CONNECTION_CLOSED, "The server is shutting down."))
            return None
        if message.id in self._client_requests:
            await self._refuse(error_response(message.id, INVALID_REQUEST, "A request with this id is in flight."))
            return None
        request = self._in_flight.open("a request over stdio")  # the handler replaces this name when it starts
        self._client_requests.add(message.id, request)
        self.last_context.run(current_request.update, in_flight=request)

        async def unanswered() -> None:
            self._client_requests.close(message.id)

        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))

    def close(self) -> None:
        """No more messages: the SDK ends, and cancels the handlers that still run."""
        self._state = _State.CLOSED
        self._server_requests.wake()
        self._output.has_room.set()
        self._lines.close()

    # Writing

    async def send(self, message: JSONRPCMessage) -> None:
        line = line_from(message)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            await self._output.write(line)
            self._client_requests.close(message.id)
            return
        if isinstance(message, JSONRPCRequest):
            self._server_requests.add(message.id, can_be_answered=self._state is _State.OPEN)
        elif message.method == "notifications/cancelled":
            self._server_requests.forget(cancelled_request_id_from_params(message.params))
        await self._output.write(line)

    async def _refuse(self, response: JSONRPCError) -> None:
        await self._output.write(line_from(response))

    def discard_output(self) -> None:
        """Do not wait any longer for a client that does not read."""
        self._output.close()

    # The end

    def _input_ended(self) -> None:
        self._output.check()
        if self._lines.exhausted:
            self._end(self._end_of_input)

    def _lost(self, error: OSError) -> None:
        """Nobody reads the responses any more, so nothing that runs for this client is waited for."""
        reason = f"the client no longer reads standard output ({error.strerror})"
        if self._client_requests and (self._state is not _State.OPEN or self._in_flight.draining):
            # The shutdown has begun for another reason, and has announced that one.
            logger.warning("%s%s: its calls are cancelled.", reason[0].upper(), reason[1:])
        self._client_requests.cancel()
        self._end(reason)

    def on_sdk_ended(self) -> None:
        """The SDK has ended. If it was not told to, its calls are lost."""
        if self._state is not _State.CLOSED:
            self._client_requests.cancel()
            self._end("serving over stdio has ended by itself")

    def _end(self, reason: str) -> None:
        if self._state is _State.OPEN:
            self._state = _State.ENDED
            self._server_requests.fail()
            self._on_end(reason)

    # The rest of the SDK's stream protocol

    async def aclose(self) -> None:
        """Called by the SDK when it stops. Does nothing, so ``on_sdk_ended`` can tell a failure from a shutdown."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Outbound(AsyncResource):
    """The ``WriteStream`` for the SDK. Closing it does nothing: ``StandardStreams`` releases standard output."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def send(self, item: SessionMessage, /) -> None:
        await self._connection.send(item.message)

    async def aclose(self) -> None:
        pass


class _ClientRequests:
    """The client's requests without a response yet, by their ids. The ids 1 and "1" are the same one, as in the SDK."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, InFlightRequest] = {}

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __contains__(self, request_id: RequestId) -> bool:
        return coerce_request_id(request_id) in self._requests

    def add(self, request_id: RequestId, request: InFlightRequest) -> None:
        self._requests[coerce_request_id(request_id)] = request

    def close(self, request_id: RequestId | None) -> None:
        """The request has its response, or the client has cancelled it."""
        if request_id is not None and (request := self._requests.pop(coerce_request_id(request_id), None)):
            request.close()

    def cancel(self) -> None:
        """Cancel all of them. Nobody waits for their responses."""
        for request in self._requests.values():
            request.cancel()
            request.close()
        self._requests.clear()


class _ServerRequests:
    """The server's requests to the client, such as questions to the user, that have no response yet.

    When the client has gone, each one gets an error response, so that no handler waits for ever.
    """

    def __init__(self) -> None:
        self._ids: set[RequestId] = set()
        self._failures: deque[JSONRPCError] = deque()
        self._woken = asyncio.Event()

    def add(self, request_id: RequestId, *, can_be_answered: bool) -> None:
        self._ids.add(request_id)
        if not can_be_answered:
            self._fail(request_id)

    def forget(self, request_id: RequestId | None) -> None:
        """The request has its response, or the handler no longer waits for one."""
        self._ids.discard(request_id)

    def fail(self) -> None:
        """The client has gone: all of them fail."""
        for request_id in self._ids:
            self._fail(request_id)

    def _fail(self, request_id: RequestId) -> None:
        self._failures.append(error_response(request_id, CONNECTION_CLOSED, "The client has closed the connection."))
        self.wake()

    def next_failure(self) -> JSONRPCError | None:
        """An error response that the SDK has to read; None if there is none."""
        return self._failures.popleft() if self._failures else None

    async def wait(self) -> None:
        """Return when there is a failure to read, or after ``wake``."""
        await self._woken.wait()
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()
