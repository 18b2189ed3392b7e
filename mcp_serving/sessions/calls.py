"""The calls of sessions that are in progress: their ids are unique, and each is answered when its session ends.

The SDK delivers a response by the id of its request, as text. With two requests of the same id, one client would get
the response to the other one. And when a client ends a session, the SDK closes the streams of its calls without an
answer, and fails for a call that it is just taking in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from mcp.server.streamable_http import GET_STREAM_KEY
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
from starlette.responses import Response

from mcp_serving.web_servers.responses import is_event_stream
from mcp_serving.workers import json_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Message, Send

_TAKE_IN_TIMEOUT = 2.0
"""Seconds for which the end of a session waits for the SDK to take in the calls that came before."""

_DELIVERY_SECONDS = 1.0
"""Seconds for which the id of a call stays reserved after its end if its client has left: its response may still be
waiting in the SDK. With an event store, it is known when the SDK has delivered it."""

_ENDED = "The session has ended; the call was cancelled."


class _Progress(Enum):
    RECEIVED = "received"
    """The SDK has not given it to the session yet."""
    RUNNING = "running"
    """Its MCP handler runs."""
    FINISHED = "finished"
    """Its response is on its way."""


@dataclass(eq=False, slots=True)
class Call:
    """One request of a session."""

    session: str
    id: int | str | None
    """None for a notification or a response of the client."""
    progress: _Progress = _Progress.RECEIVED
    is_awaited: bool = True
    """Whether its HTTP request is in progress."""

    @property
    def key(self) -> tuple[str, str]:
        return self.session, str(self.id)


class CallsInProgress:
    """The calls of all sessions of a handler. A session is identified by its nonce."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], Call] = {}
        self._received: Counter[str] = Counter()
        """How many messages of each session the SDK has not given to the session yet."""
        self._ending: Counter[str] = Counter()
        self._taken_in = asyncio.Event()

    def post_began(self, session: str, request_id: int | str | None) -> Call | None:
        """A POST of a session has arrived; ``request_id`` is None for a notification or a response of the client.

        Returns:
            None if a request with this id is in progress, so that this one must be refused.
        """
        call = Call(session, request_id)
        if request_id is not None:
            if call.key in self._calls or request_id == GET_STREAM_KEY:
                return None
            self._calls[call.key] = call
        self._received[session] += 1
        return call

    def post_ended(self, call: Call) -> None:
        """The POST is answered, or its client has left."""
        if call.progress is _Progress.RECEIVED:
            self._take_in(call.session)
            call.progress = _Progress.FINISHED
        call.is_awaited = False
        if call.progress is _Progress.FINISHED:
            self.release(call)

    def handler_began(self, session: str, request_id: int | str) -> Call | None:
        """The MCP handler of a request starts. It may still run after its client has left.

        Returns:
            None if the request opens the session, or if its client left before the SDK took it in.
        """
        call = self._calls.get((session, str(request_id)))
        if call is not None:
            self._take_in(session)
            call.progress = _Progress.RUNNING
        return call

    def handler_ended(self, call: Call | None) -> None:
        """The MCP handler has ended; ``call`` is the result of ``handler_began``."""
        if call is not None:
            call.progress = _Progress.FINISHED
            if not call.is_awaited:
                asyncio.get_running_loop().call_later(_DELIVERY_SECONDS, self.release, call)

    def release(self, call: Call) -> None:
        """Let other requests use the id of a call."""
        if self._calls.get(call.key) is call:
            del self._calls[call.key]

    def response_stored(self, session: str, request_id: str) -> None:
        """An event store has the response to a call, which the SDK delivers in the same step."""
        if (call := self._calls.get((session, request_id))) is not None:
            asyncio.get_running_loop().call_soon(self.release, call)

    def sending(self, send: Send, call: Call, has_ended: Callable[[], bool]) -> Send:
        """``send`` for the response to a call, which releases its id.

        If the session ends before the call, an event stream ends with an error.

        Args:
            send: sends the response.
            call: the call.
            has_ended: returns whether the session has ended.
        """
        request_id = call.id
        assert request_id is not None
        is_stream = False
        last_event = b""

        def send_response(message: Message) -> Awaitable[None]:
            nonlocal is_stream, last_event
            if message["type"] == "http.response.start":
                is_stream = is_event_stream(message)
                return send(message)
            is_over = not message.get("more_body", False)
            if is_over or call.progress is _Progress.FINISHED:
                self.release(call)
            if is_stream:
                if b"data: {" in (body := message.get("body", b"")):
                    last_event = body
                if is_over and has_ended() and not json_rpc.is_response_event(last_event, request_id):
                    return send_error_first(message)
            return send(message)

        async def send_error_first(message: Message) -> None:
            event = json_rpc.error_event(request_id, CONNECTION_CLOSED, _ENDED)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await send(message)

        return send_response

    def _take_in(self, session: str) -> None:
        self._received[session] -= 1
        if not self._received[session]:
            del self._received[session]
            self._taken_in.set()

    def is_ending(self, session: str) -> bool:
        """Whether the client is ending this session."""
        return session in self._ending

    @asynccontextmanager
    async def end(self, session: str) -> AsyncIterator[None]:
        """Around the end of a session. It waits for the calls that the SDK is just taking in."""
        self._ending[session] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TAKE_IN_TIMEOUT):
                    while session in self._received:
                        self._taken_in.clear()
                        await self._taken_in.wait()
            yield
        finally:
            self._ending[session] -= 1
            if not self._ending[session]:
                del self._ending[session]


def refused_id(request_id: int | str) -> Response:
    """The response to a request whose id is in use."""
    text = "A request with this id is in progress; use another id"
    return Response(
        json_rpc.error_body(request_id, INVALID_REQUEST, text), status_code=409, media_type="application/json"
    )
