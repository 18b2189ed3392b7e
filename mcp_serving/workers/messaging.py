"""Messaging between the workers of a project over their channel layer, and which of them still exist."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from channels.exceptions import ChannelFull

from mcp_serving import channel_layer
from mcp_serving.channel_layer import health
from mcp_serving.workers import timeouts
from mcp_serving.workers.peer import FrameHandler, Peer

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

GROUP = "mcp_serving.workers"
"""The group of all workers. It is told which of them leave, or do not answer."""

MAX_GONE = 10_000
"""How many workers that are gone are remembered. A request for another one waits for ``timeouts.PEER`` again."""


class Messaging:
    """This worker's channel, and the other workers that it exchanges messages with.

    Args:
        layer: the channel layer that the workers share.
        handler: gets the frames of the other workers, and is told about losses.
    """

    channel = ""
    """The channel of this worker. Empty until the layer has worked once."""

    def __init__(self, layer: BaseChannelLayer, handler: FrameHandler) -> None:
        self._handler = handler
        self._layer = layer
        self._peers: dict[str, Peer] = {}
        self._gone: dict[str, float] = {}
        """When each worker that is gone was last pinged. A worker that has left is never pinged: infinity."""
        self._outages = health.outages
        """How many outages of the layer this worker has recovered from."""
        self._must_rejoin = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_check = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Receive messages for the length of the block. At its end, tell the other workers that this one leaves."""
        try:
            joined = await self._join(timeouts.SEND if health.available else timeouts.START_DURING_OUTAGE)
            self._start_task(self._stay_joined(joined))
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for peer in self._peers.values():
                peer.stop()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._leave()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it ends, at the latest until ``open`` ends."""
        task = asyncio.create_task(work, name="mcp_serving messaging")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The group of workers

    async def _join(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                if not self.channel:
                    # With the layer's default prefix. With different prefixes, channels_redis lets a process receive
                    # on one channel at a time.
                    self.channel = await channel_layer.new_channel(self._layer)
                    self._start_task(self._receive())
                await self._layer.group_add(GROUP, self.channel)
        except Exception as error:
            health.record_failure(error)
            return False
        self._layer_answered()
        return True

    async def _stay_joined(self, joined: bool) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeouts.REJOIN_INTERVAL if joined else timeouts.PING_INTERVAL):
                    await self._must_rejoin.wait()
            self._must_rejoin.clear()
            joined = await self._join(timeouts.SEND)

    async def _leave(self) -> None:
        if not health.available:  # every handler of the process would wait for the timeout
            return
        with suppress(Exception):  # a worker that is not told finds out by itself
            async with asyncio.timeout(timeouts.LEAVE):
                await self._layer.group_discard(GROUP, self.channel)
        await self._announce(self.channel, "gone")

    async def _announce(self, channel: str, state: str) -> None:
        """Tell every worker that one of them is ``gone``, ``silent`` or ``here``."""
        with suppress(Exception):  # a worker that is not told finds out by itself
            async with asyncio.timeout(timeouts.LEAVE):
                await self._layer.group_send(GROUP, {"about": channel, "state": state})

    def _layer_answered(self) -> None:
        recovers = not health.available or self._outages != health.outages
        health.record_success()
        self._outages = health.outages
        if recovers:
            self._must_rejoin.set()
            self._excuse_silence()

    # Messages

    def peer(self, channel: str) -> Peer | None:
        """The worker with this channel; None if it is gone."""
        if channel in self._gone:
            self._ping_gone(channel)
            return None
        return self._peer(channel)

    def _peer(self, channel: str) -> Peer:
        peer = self._peers.get(channel)
        if peer is None:
            peer = self._peers[channel] = Peer(channel, self._send, self._handler)
        return peer

    async def _send(self, channel: str, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(timeouts.SEND):
                await self._layer.send(channel, {"from": self.channel, **message})
        except ChannelFull:
            raise
        except Exception as error:
            health.record_failure(error)
            raise
        self._layer_answered()

    async def _receive(self) -> None:
        while True:
            started = time.monotonic()
            try:
                message = await self._layer.receive(self.channel)
            except Exception as error:
                # With redis-py 8.0 or later, receive() of channels_redis raises a TimeoutError after five seconds
                # without a message (channels_redis issue 422). That is not a failure.
                is_idle = type(error).__name__ == "TimeoutError"
                if not is_idle:
                    health.record_failure(error)
                if not is_idle or time.monotonic() - started < timeouts.RECEIVE_RETRY:
                    await asyncio.sleep(timeouts.RECEIVE_RETRY)
                continue
            self._layer_answered()
            try:
                self._handle(message)
            except Exception:  # of a worker with another version of this package
                logger.exception("A message of another worker could not be handled.")

    def _handle(self, message: dict[str, Any]) -> None:
        if "about" in message:
            self._handle_announcement(message["about"], message["state"])
            return
        self._restore(message["from"])
        self._peer(message["from"]).receive(message)

    # Which workers exist

    def _handle_announcement(self, channel: str, state: str) -> None:
        if channel == self.channel:
            if state == "silent":  # this worker was only held up
                self._start_task(self._announce(channel, "here"))
        elif state == "here":
            self._restore(channel)
        elif state == "gone":
            self._set_gone(channel, last_ping=math.inf)
        elif self._is_silent(channel):
            self._set_gone(channel, last_ping=time.monotonic())

    def _is_silent(self, channel: str) -> bool:
        """Whether a worker has not sent anything to this one for a while, either."""
        peer = self._peers.get(channel)
        return peer is None or time.monotonic() - peer.last_received > 1.5 * timeouts.PING_INTERVAL

    def _ping_gone(self, channel: str) -> None:
        """Ping a worker that was taken to be gone.

        It may have been held up for so long that the messages to it have expired. Then nothing else restores it.
        """
        now = time.monotonic()
        if now - self._gone[channel] >= timeouts.GONE_PING_INTERVAL:
            self._gone[channel] = now
            peer = self._peer(channel)
            peer.start()
            peer.send({"kind": "ping"})

    def watch(self) -> None:
        """Check every second whether the workers still exist, for as long as requests between them are in progress."""
        if self._timer is None:
            self._last_check = time.monotonic()
            # An empty context, so that the timer does not keep the request that happened to be the first.
            self._timer = asyncio.get_running_loop().call_later(timeouts.PING_INTERVAL, self._check, context=Context())

    def _check(self) -> None:
        now = time.monotonic()
        if now - self._last_check > 2 * timeouts.PING_INTERVAL:
            self._excuse_silence()  # this process was held up, and has not read the messages of the others
        self._last_check = now
        for peer in list(self._peers.values()):
            if peer.awaited:
                self._check_peer(peer, now - peer.last_received)
            elif peer.served and now - peer.last_received > 2 * timeouts.PEER:
                self._handler.handle_loss(peer, gone=True)
        is_busy = any(peer.awaited or peer.served for peer in self._peers.values())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeouts.PING_INTERVAL, self._check) if is_busy else None

    def _check_peer(self, peer: Peer, silent_for: float) -> None:
        if max(silent_for, time.monotonic() - peer.last_sent) < 0.9 * timeouts.PING_INTERVAL:
            return  # both workers have just heard from each other, as with many quick calls
        if silent_for <= timeouts.PEER:
            peer.send({"kind": "ping"})
        elif health.available:
            logger.warning(
                "Another worker has not answered for %g s. It is taken to be gone, and its sessions with it.",
                timeouts.PEER,
            )
            self._set_gone(peer.channel, last_ping=time.monotonic())
            self._start_task(self._announce(peer.channel, "silent"))
        else:
            self._handler.handle_loss(peer, gone=False)

    def _excuse_silence(self) -> None:
        """Measure the silence of all workers from now on: messages could not be received before."""
        for peer in self._peers.values():
            peer.last_received = time.monotonic()

    def _set_gone(self, channel: str, *, last_ping: float) -> None:
        self._gone[channel] = last_ping
        peer = self._peers.get(channel)
        if last_ping == math.inf:
            self._peers.pop(channel, None)
        if len(self._gone) > MAX_GONE:
            forgotten = next(iter(self._gone))
            del self._gone[forgotten]
            self._peers.pop(forgotten, None)
        if peer is not None:
            peer.stop()
            self._handler.handle_loss(peer, gone=True)

    def _restore(self, channel: str) -> None:
        """A worker that was taken to be gone exists."""
        if channel in self._gone:
            del self._gone[channel]
            if (peer := self._peers.get(channel)) is not None:
                peer.start()
