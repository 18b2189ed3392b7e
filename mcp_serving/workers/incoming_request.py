"""A relayed request, in the worker that has its session."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

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
            self._start = message  # sent with the first part of the body, which always follows soon
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), MAX_MESSAGE_SIZE):
            piece = body[start : start + MAX_MESSAGE_SIZE]
            while self._sent - self._read + len(piece) > WINDOW and not self._is_disconnected:
                await self._change()
            await self._send_piece(piece, more=more or start + MAX_MESSAGE_SIZE < len(body))

    async def _send_piece(self, piece: bytes, *, more: bool) -> None:
        frame: Frame = {"kind": "response", "request": self.number, "body": piece, "more": more}
        if self._start is not None:
            frame["status"] = self._start["status"]
            frame["headers"] = [list(header) for header in self._start.get("headers", ())]
            self._start = None
        self._sent += len(piece)
        if self._is_disconnected:
            return
        if more:
            self.peer.send(frame, size=len(piece))
            return
        self.peer.send(frame, size=len(piece), on_sent=self._set_answered)
        while not (self.is_answered or self._is_disconnected):  # a shutdown must not stop the messages before
            await self._change()

    def _set_answered(self, _: int) -> None:
        self.is_answered = True
        self._has_changed.set()

    async def _change(self) -> None:
        self._has_changed.clear()
        await self._has_changed.wait()
