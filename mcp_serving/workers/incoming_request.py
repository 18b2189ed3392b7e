"""A relayed request, in the worker that has its session."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from mcp_serving.workers import timeouts
from mcp_serving.workers.outgoing_request import WINDOW
from mcp_serving.workers.peer import MAX_MESSAGE_SIZE

if TYPE_CHECKING:
    from starlette.types import Message

    from mcp_serving.workers.peer import Frame, Peer


class IncomingRequest:
    """A request whose client is connected to another worker. ``receive`` and ``send`` are those of ASGI.

    Args:
        peer: the other worker.
        number: identifies the request among those of the other worker.
        frame: the request frame, which has the beginning of the body.
    """

    task: asyncio.Task[None]
    """Serves the request."""

    def __init__(self, peer: Peer, number: int, frame: Frame) -> None:
        self.peer = peer
        self.number = number
        self.is_answered = False
        """Whether the whole response has been sent."""
        self._body: deque[Frame] = deque([frame])
        self._start: Message | None = None
        self._waiting = bytearray()
        """The pieces of the response that are sent together, soon."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_disconnected = False
        self._sent = self._read = 0
        self._has_changed = asyncio.Event()

    def handle_frame(self, frame: Frame) -> None:
        if frame["kind"] == "body":
            self._body.append(frame)
        elif frame["kind"] == "read":
            self._read = frame["bytes"]
        else:
            self._is_disconnected = True
        self._has_changed.set()

    def disconnect(self) -> None:
        """The client has left, or the other worker cannot be reached."""
        self._is_disconnected = True
        self._has_changed.set()

    async def receive(self) -> Message:
        while not self._body and not self._is_disconnected:
            await self._change()
        if not self._body:
            return {"type": "http.disconnect"}
        frame = self._body.popleft()
        return {"type": "http.request", "body": frame["body"], "more_body": frame["more"]}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), MAX_MESSAGE_SIZE):
            piece = body[start : start + MAX_MESSAGE_SIZE]
            while self._sent - self._read + len(piece) > WINDOW and not self._is_disconnected:
                await self._change()
            self._add(piece, more=more or start + MAX_MESSAGE_SIZE < len(body))
        while not (more or self.is_answered or self._is_disconnected):  # a shutdown must not stop the messages before
            await self._change()

    def _add(self, piece: bytes, *, more: bool) -> None:
        """Send a piece of the body, together with the pieces that follow at once."""
        self._sent += len(piece)
        if len(self._waiting) + len(piece) > MAX_MESSAGE_SIZE:
            self._flush()
        self._waiting += piece
        if not more:
            self._flush(more=False)
            return
        if self._timer is None or (piece and len(self._waiting) == len(piece)):
            self._cancel_timer()
            delay = timeouts.JOIN_PIECES if piece else timeouts.JOIN_HEADERS
            self._timer = asyncio.get_running_loop().call_later(delay, self._flush)

    def _flush(self, *, more: bool = True) -> None:
        """Send the pieces that wait."""
        self._cancel_timer()
        body, self._waiting = bytes(self._waiting), bytearray()
        frame: Frame = {"kind": "response", "request": self.number, "body": body, "more": more}
        if self._start is not None:
            frame["status"] = self._start["status"]
            frame["headers"] = [list(header) for header in self._start.get("headers", ())]
            self._start = None
        if not self._is_disconnected:
            self.peer.send(frame, size=len(body), on_sent=None if more else self._set_answered)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Drop the pieces that wait: nothing serves the request any more."""
        self._cancel_timer()

    def _set_answered(self, _: int) -> None:
        self.is_answered = True
        self._has_changed.set()

    async def _change(self) -> None:
        self._has_changed.clear()
        await self._has_changed.wait()
