"""Messages to and from one other worker: in order, delivered once, with losses noticed.

A channel layer delivers most messages once. channels_redis may deliver a message twice, and it loses all waiting
messages when Redis restarts. So the messages to a worker are numbered. Their receiver drops duplicates and notices
gaps. After a gap, both workers give up the requests that they serve for each other, and go on with new ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from channels.exceptions import ChannelFull

from mcp_serving.workers import timeouts

logger = logging.getLogger(__name__)

Frame: TypeAlias = dict[str, Any]
"""A part of a request or response, or a control frame. A message has one or more of them. ``kind`` is its type."""

MAX_MESSAGE_SIZE = 64 * 1024
"""Bytes of all bodies in one message."""


class FrameHandler(Protocol):
    """The user of the messages."""

    def handle_frame(self, peer: Peer, frame: Frame) -> None:
        """Another worker has sent this frame."""

    def handle_loss(self, peer: Peer, *, gone: bool, before: int | None = None) -> None:
        """Give up the requests that this worker and a peer serve for each other.

        Args:
            peer: the other worker.
            gone: the other worker does not exist any more. Otherwise it cannot be reached, or a message was lost.
            before: if given, only requests that were sent to it in messages before this number.
        """


@dataclass(frozen=True, slots=True)
class _QueuedFrame:
    frame: Frame
    size: int
    keep: bool
    on_refused: Callable[[bool], None] | None
    on_sent: Callable[[int], None] | None


class Peer:
    """Another worker.

    Args:
        channel: the channel of the other worker.
        send: sends a message to that channel, or raises.
        handler: gets the frames of the other worker.
    """

    def __init__(self, channel: str, send: Callable[[str, Frame], Awaitable[None]], handler: FrameHandler) -> None:
        self.channel = channel
        self.served = 0
        """How many requests of the other worker this one serves."""
        self.last_received = self.last_sent = time.monotonic()
        self._awaited = 0
        self._send = send
        self._handler = handler
        # Larger than every number that a former ``Peer`` for the same worker has used.
        self._first_number = self._last_sent_number = time.time_ns() // 1000
        self._last_received_number: int | None = None
        self._queue: deque[_QueuedFrame] = deque()
        self._unconfirmed: list[_QueuedFrame] | None = None
        """The rest of a message whose sending failed, although it may have arrived."""
        self._sender: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self._is_stopped = False

    @property
    def awaited(self) -> int:
        """How many requests of this worker the other one serves."""
        return self._awaited

    @awaited.setter
    def awaited(self, awaited: int) -> None:
        if not self._awaited:
            self.last_received = time.monotonic()  # before, it had no reason to send anything
        self._awaited = awaited

    # Sending

    def send(
        self,
        frame: Frame,
        *,
        size: int = 0,
        keep: bool = False,
        on_refused: Callable[[bool], None] | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        """Send a frame soon, in the next message.

        Args:
            frame: the frame.
            size: bytes of the body in it.
            keep: the frame is still sent after an outage that is so long that all other frames are given up.
            on_refused: if given, the frame is not sent later when the layer fails now. The function is called instead.
                Its argument says whether the frame may have arrived nevertheless.
            on_sent: is called with the number of the message when it has been sent.
        """
        if self._is_stopped:
            return
        self._queue.append(_QueuedFrame(frame, size, keep, on_refused, on_sent))
        if self._sender is None:
            # An empty context, so that the task does not keep the request that happened to be the first.
            self._sender = asyncio.create_task(self._send_all(), name="mcp_serving messages", context=Context())

    def withdraw(self, request: int) -> bool:
        """Remove the frames of a request that are not sent yet; returns whether nothing of the request was sent."""
        nothing_sent = False
        for queued in list(self._queue):
            if queued.on_refused is not None and queued.frame["request"] == request:
                self._queue.remove(queued)
                nothing_sent = nothing_sent or queued.frame["kind"] == "request"
        return nothing_sent

    async def _send_all(self) -> None:
        try:
            while self._queue or self._unconfirmed:
                await self._send_message()
        finally:
            if self._sender is asyncio.current_task():
                self._sender = self._failing_since = None

    async def _send_message(self) -> None:
        batch = self._next_batch() if self._unconfirmed is None else self._unconfirmed
        number = self._last_sent_number + 1
        message = {"first": self._first_number + 1, "number": number, "frames": [queued.frame for queued in batch]}
        try:
            await self._send(self.channel, message)
        except Exception as error:
            await self._keep_or_give_up(batch, error)
            return
        self._failing_since = self._unconfirmed = None
        self._last_sent_number = number
        self.last_sent = time.monotonic()
        for queued in batch:
            if queued.on_sent is not None:
                queued.on_sent(number)

    def _next_batch(self) -> list[_QueuedFrame]:
        batch, size = [self._queue.popleft()], 0
        while self._queue and (size := size + batch[-1].size) + self._queue[0].size <= MAX_MESSAGE_SIZE:
            batch.append(self._queue.popleft())
        return batch

    async def _keep_or_give_up(self, batch: list[_QueuedFrame], error: Exception) -> None:
        """After a failure, keep the frames that are sent again, and give up the others."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        failing_for = now - self._failing_since
        is_full = isinstance(error, ChannelFull)
        refused: list[tuple[Callable[[bool], None], bool]] = []
        if not is_full or failing_for >= timeouts.CHANNEL_FULL:
            refused += [(queued.on_refused, not is_full) for queued in batch if queued.on_refused is not None]
            refused += [(queued.on_refused, False) for queued in self._queue if queued.on_refused is not None]
            batch = [queued for queued in batch if queued.on_refused is None]
            self._queue = deque(queued for queued in self._queue if queued.on_refused is None)
        is_over = failing_for >= timeouts.PEER
        if is_over:
            batch = [queued for queued in batch if queued.keep]
            self._queue = deque(queued for queued in self._queue if queued.keep)
            self._failing_since = None
        if is_full and self._unconfirmed is None:
            self._queue.extendleft(reversed(batch))
        else:
            # The message may have arrived. New frames under its number would then be dropped as a duplicate. So the
            # message is sent again without the frames that were given up, even if it becomes empty.
            self._unconfirmed = batch
        for on_refused, may_have_arrived in refused:
            on_refused(may_have_arrived)
        if is_over:
            self._handler.handle_loss(self, gone=False)
        await asyncio.sleep(0.01 if is_full and failing_for < timeouts.CHANNEL_FULL else 0.1)

    # Receiving

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the other worker."""
        self.last_received = time.monotonic()
        number: int = message["number"]
        expected = message["first"] if self._last_received_number is None else self._last_received_number + 1
        if number < expected:
            return  # a duplicate
        self._last_received_number = number
        if number > expected:
            logger.warning(
                "The channel layer has lost messages of another worker. The requests between these two workers that "
                "were in progress are given up."
            )
            self._handler.handle_loss(self, gone=False)
            self.send({"kind": "lost", "before": number}, keep=True)
        for frame in message["frames"]:
            if frame["kind"] == "ping":
                self.send({"kind": "pong"})
            elif frame["kind"] == "lost":
                self._handler.handle_loss(self, gone=False, before=frame["before"])
            elif frame["kind"] != "pong":
                try:
                    self._handler.handle_frame(self, frame)
                except Exception:  # of a worker with another version of this package; other frames may be understood
                    logger.exception("A frame of another worker could not be handled.")

    # Whether it exists

    def stop(self) -> None:
        """Send nothing until ``start``: the other worker is gone."""
        self._is_stopped = True
        self._queue.clear()
        if self._sender is not None:
            self._sender.cancel()  # this may take a while, and frames after ``start`` do not wait for it
            self._sender = self._failing_since = self._unconfirmed = None
            self._last_sent_number += 1  # the current message may have arrived, so its number is not used again

    def start(self) -> None:
        """Send again: the other worker exists."""
        self._is_stopped = False
