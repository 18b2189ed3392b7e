"""A relayed request, in the worker to which its client is connected."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from mcp_types import CONNECTION_CLOSED
from starlette.responses import Response

from mcp_serving.web_servers.responses import Refusal, is_event_stream
from mcp_serving.workers import timeouts
from mcp_serving.workers.json_rpc import error_body, error_event
from mcp_serving.workers.peer import MAX_MESSAGE_SIZE

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from mcp_serving.workers.peer import Frame, Peer

WINDOW = 4 * MAX_MESSAGE_SIZE
"""Bytes of a response that the other worker sends before the client has read them. A client that reads slowly makes
the other worker wait."""

UNREACHABLE = Refusal(503, "The worker that has this session cannot be reached now.", headers={"retry-after": "1"})


class RelayResult(Enum):
    """The result of relaying a request."""

    ANSWERED = "answered"
    OWNER_GONE = "owner gone"
    """Nothing was answered. The session is lost with the worker that had it."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """The rest of the response will not come."""

    gone: bool
    """Whether the worker that had the session is gone. Otherwise it only cannot be reached."""


class _Progress(Enum):
    """How much of the response the client has been sent."""

    NOT_STARTED = auto()
    STARTED = auto()
    BETWEEN_EVENTS = auto()
    WITHIN_AN_EVENT = auto()
    COMPLETE = auto()


class OutgoingRequest:
    """A request whose session is in another worker.

    Args:
        number: identifies the request among those of this worker.
        peer: the worker that has the session.
    """

    def __init__(self, number: int, peer: Peer) -> None:
        self.number = number
        self.peer = peer
        self.is_complete = False
        """Whether the whole response has arrived."""
        self._may_have_arrived = True
        self._progress = _Progress.NOT_STARTED
        self._arrived: deque[Frame | _Lost] = deque()
        self._has_changed = asyncio.Event()
        self._message_number: int | None = None
        self._read = self._acknowledged = 0

    # The request

    def send_request(self, scope: Frame, mount: str, body: bytes) -> None:
        """Send the request to the other worker."""
        pieces = [body[start : start + MAX_MESSAGE_SIZE] for start in range(0, max(len(body), 1), MAX_MESSAGE_SIZE)]
        request: Frame = {
            "kind": "request",
            "request": self.number,
            "scope": scope,
            "mount": mount,
            # Earlier than this worker refuses the request because the layer does not answer. After that, the request
            # must not be served. The clocks of the workers agree, which the expiry of a layer's messages needs too.
            "until": time.time() + 0.9 * timeouts.SEND,
        }
        for index, piece in enumerate(pieces):
            frame = request if not index else {"kind": "body", "request": self.number}
            self.peer.send(
                {**frame, "body": piece, "more": index < len(pieces) - 1},
                size=len(piece),
                on_refused=self._refuse_body if index else self._refuse,
                on_sent=None if index else self._set_message_number,
            )

    def _refuse(self, may_have_arrived: bool) -> None:
        self._may_have_arrived = may_have_arrived
        self.lose(gone=False)

    def _refuse_body(self, _: bool) -> None:
        self.lose(gone=False)

    def _set_message_number(self, number: int) -> None:
        self._message_number = number

    def was_sent_before(self, number: int) -> bool:
        """Whether the request was sent in a message before this number."""
        return self._message_number is not None and self._message_number < number

    def close(self) -> None:
        """Tell the other worker that the client has left, if that worker may still serve the request."""
        if self.is_complete or self.peer.withdraw(self.number) or not self._may_have_arrived:
            return
        self.peer.send({"kind": "disconnected", "request": self.number}, keep=True)

    # The response

    def handle_response(self, frame: Frame) -> None:
        self._add(frame)
        self.is_complete = self.is_complete or not frame["more"]

    def lose(self, *, gone: bool) -> None:
        """The rest of the response will not come; ``gone`` if the other worker does not exist any more."""
        self._add(_Lost(gone))

    def _add(self, arrived: Frame | _Lost) -> None:
        self._arrived.append(arrived)
        self._has_changed.set()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> RelayResult:
        """Pass the response on until it is complete, or until the client has left."""
        client = asyncio.ensure_future(_client_leaves(receive))
        client.add_done_callback(lambda _: self._has_changed.set())
        try:
            while (frame := await self._next(client)) is not None:
                if isinstance(frame, _Lost):
                    if self._progress is not _Progress.NOT_STARTED:
                        break  # the middleware aborts the response
                    if frame.gone:
                        return RelayResult.OWNER_GONE
                    await UNREACHABLE(scope, receive, send)
                    break
                await self._send_part(frame, send)
                if not frame["more"]:
                    break
            return RelayResult.ANSWERED
        finally:
            client.cancel()

    async def _send_part(self, frame: Frame, send: Send) -> None:
        if "status" in frame:
            # "Connection" concerns the client and the worker to which it is connected.
            headers = [(name, value) for name, value in frame["headers"] if name.lower() != b"connection"]
            start = {"type": "http.response.start", "status": frame["status"], "headers": headers}
            self._progress = _Progress.BETWEEN_EVENTS if is_event_stream(start) else _Progress.STARTED
            await send(start)
        if frame["body"] and self._progress in (_Progress.BETWEEN_EVENTS, _Progress.WITHIN_AN_EVENT):
            is_whole = frame["body"].endswith((b"\r\n\r\n", b"\n\n"))
            self._progress = _Progress.BETWEEN_EVENTS if is_whole else _Progress.WITHIN_AN_EVENT
        if not frame["more"]:
            self._progress = _Progress.COMPLETE
        await send({"type": "http.response.body", "body": frame["body"], "more_body": frame["more"]})
        self._acknowledge(len(frame["body"]))

    async def send_error(self, request_id: int | str, text: str, send: Send) -> None:
        """End the response with an error, if there is still room for one. The rest of the response is dropped."""
        if self._progress is _Progress.NOT_STARTED:
            response = Response(error_body(request_id, CONNECTION_CLOSED, text), media_type="application/json")
            await response({"type": "http"}, _no_message, send)
        elif self._progress is _Progress.BETWEEN_EVENTS:
            await send({"type": "http.response.body", "body": error_event(request_id, CONNECTION_CLOSED, text)})

    async def _next(self, client: asyncio.Future[None]) -> Frame | _Lost | None:
        """The next part of the response; None if the client has left."""
        while not (self._arrived or client.done()):
            self._has_changed.clear()
            await self._has_changed.wait()
        return None if client.done() else self._arrived.popleft()

    def _acknowledge(self, size: int) -> None:
        self._read += size
        if self._read - self._acknowledged >= WINDOW // 2:
            self._acknowledged = self._read
            self.peer.send({"kind": "read", "request": self.number, "bytes": self._read})


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _no_message() -> Message:
    return {"type": "http.disconnect"}
