"""Messages between the workers of a project, over their channel layer.

A layer delivers at most once, most of the time: ``channels_redis`` may deliver a message twice, and forgets all that
wait when Redis restarts. Here each message is numbered, so that the other end drops what comes twice, and knows when
one was lost: then both ends give up what they had in hand with each other, and go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from channels.exceptions import ChannelFull

from mcp_serving import channel_layer
from mcp_serving.channel_layer import health

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

Part: TypeAlias = dict[str, Any]
"""What one worker says to another: a dict of what a channel layer carries. Several may go in one message."""

WORKERS = "mcp_serving.workers"
"""The group of all workers: who leaves says so to it."""

MESSAGE_SIZE = 64 * 1024
"""Bytes of bodies in one message, at the most."""

PATIENCE = 3.0
"""Seconds without a word after which another worker that was asked for one is taken to be gone."""

TICK = 1.0
"""Seconds between two questions whether a worker is still there, while it has something of ours in hand."""

FULL_SECONDS = 1.0
"""For how long a new request waits for room in the channel of another worker."""

SEND_SECONDS = 2.0
"""How long the layer may take for one message before it counts as failing."""

LEAVE_SECONDS = 0.5
"""How long a goodbye may take."""

AGAIN_SECONDS = 0.2
"""How long a handler that starts waits for a layer that has just not answered: it joins when the layer is there."""

REJOIN_SECONDS = 60.0
"""How often the group is joined again: a layer that has restarted knows of no groups."""

KNOCK_SECONDS = 10.0
"""How often a worker that was taken to be gone is asked whether it is, while requests of its sessions come."""

REMEMBERED = 10_000
"""How many workers that are gone are remembered: longer ago, finding it out again takes PATIENCE."""


class MessageHandler(Protocol):
    """Who uses the links."""

    def hear(self, link: Link, part: Part) -> None:
        """Another worker has said this."""

    def lose(self, link: Link, *, gone: bool, before: int | None = None) -> None:
        """What is in hand with this worker is lost.

        Args:
            link: the worker.
            gone: it does not exist any more; else it only cannot be reached, or something was lost on the way.
            before: where only what was said in messages before this number is lost.
        """


@dataclass(frozen=True, slots=True)
class _Said:
    part: Part
    size: int
    lasts: bool
    on_refused: Callable[[bool], None] | None
    on_sent: Callable[[int], None] | None


class Link:
    """What this worker says to another one, in order.

    Attributes:
        channel: the other worker's.
        watched: how many things of the other worker are in hand here; it ends them, unless it is gone.
    """

    def __init__(self, links: Links, channel: str) -> None:
        self.channel = channel
        self.watched = 0
        self.heard = time.monotonic()
        self._waiting = 0
        # Later than any number that a link to the same worker, forgotten since, has ever used.
        self._first = self._last_sent = time.time_ns() // 1000
        self._last_heard: int | None = None
        self._links = links
        self._outbox: deque[_Said] = deque()
        self._again: list[_Said] | None = None
        """What is left of a message of which nobody knows whether it has arrived."""
        self._sender: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self._is_stopped = False

    @property
    def waiting(self) -> int:
        """How many things the other worker has in hand, and this one waits for."""
        return self._waiting

    @waiting.setter
    def waiting(self, waiting: int) -> None:
        if not self._waiting:
            self.heard = time.monotonic()  # nobody had to say anything before
        self._waiting = waiting

    def say(
        self,
        part: Part,
        *,
        size: int = 0,
        lasts: bool = False,
        on_refused: Callable[[bool], None] | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        """Send this part, soon.

        Args:
            part: what is said.
            size: bytes of bodies in it.
            lasts: it is kept when the layer fails for so long that all else is given up.
            on_refused: where given, nobody waits until the layer works again: it is called instead, with whether the
                part may have arrived all the same.
            on_sent: is called with the number of the message, once that is on its way.
        """
        if self._is_stopped:
            return
        self._outbox.append(_Said(part, size, lasts, on_refused, on_sent))
        if self._sender is None:
            # An empty context: it must not keep the request that happened to be first.
            self._sender = asyncio.create_task(self._send_all(), name="mcp_serving link", context=Context())

    async def _send_all(self) -> None:
        try:
            while self._outbox or self._again:
                await self._send_some()
        finally:
            if self._sender is asyncio.current_task():
                self._sender = self._failing_since = None

    async def _send_some(self) -> None:
        batch = self._next() if self._again is None else self._again
        number = self._last_sent + 1
        try:
            await self._links.send(
                self.channel,
                {
                    "from": self._links.channel,
                    "first": self._first + 1,
                    "number": number,
                    "parts": [said.part for said in batch],
                },
            )
        except Exception as error:
            await self._put_back(batch, error)
            return
        self._failing_since = self._again = None
        self._last_sent = number
        for said in batch:
            if said.on_sent is not None:
                said.on_sent(number)

    def take_back(self, request: int) -> bool:
        """Send nothing more of a request that would have been refused if the layer failed; whether nothing was sent."""
        was_first = False
        for said in list(self._outbox):
            if said.on_refused is not None and said.part["request"] == request:
                self._outbox.remove(said)
                was_first = was_first or said.part["kind"] == "request"
        return was_first

    def _next(self) -> list[_Said]:
        batch, size = [self._outbox.popleft()], 0
        while self._outbox and (size := size + batch[-1].size) + self._outbox[0].size <= MESSAGE_SIZE:
            batch.append(self._outbox.popleft())
        return batch

    async def _put_back(self, batch: list[_Said], error: Exception) -> None:
        """Keep what the layer has not taken for another try, or give it up."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        failing_for = now - self._failing_since
        is_full = isinstance(error, ChannelFull)
        refused: list[tuple[Callable[[bool], None], bool]] = []
        if not is_full or failing_for >= FULL_SECONDS:
            refused += [(said.on_refused, not is_full) for said in batch if said.on_refused is not None]
            refused += [(said.on_refused, False) for said in self._outbox if said.on_refused is not None]
            batch = [said for said in batch if said.on_refused is None]
            self._outbox = deque(said for said in self._outbox if said.on_refused is None)
        is_over = failing_for >= PATIENCE
        if is_over:
            batch = [said for said in batch if said.lasts]
            self._outbox = deque(said for said in self._outbox if said.lasts)
            self._failing_since = None
        if is_full and self._again is None:
            self._outbox.extendleft(reversed(batch))
        else:
            # It may have arrived all the same. What else is said must not go under its number, to be dropped as what
            # comes twice: it is sent once more, without what is given up, even if that leaves nothing.
            self._again = batch
        for on_refused, may_have_arrived in refused:
            on_refused(may_have_arrived)
        if is_over:
            self._links.handler.lose(self, gone=False)
        await asyncio.sleep(0.01 if is_full and failing_for < FULL_SECONDS else 0.1)

    def hear(self, message: dict[str, Any]) -> None:
        self.heard = time.monotonic()
        number: int = message["number"]
        expected = message["first"] if self._last_heard is None else self._last_heard + 1
        if number < expected:
            return  # delivered twice
        self._last_heard = number
        if number > expected:
            logger.warning("The channel layer has lost messages of another worker: what they were about is given up.")
            self._links.handler.lose(self, gone=False)
            self.say({"kind": "lost", "before": number}, lasts=True)
        for part in message["parts"]:
            if part["kind"] == "ping":
                self.say({"kind": "pong"})
            elif part["kind"] == "lost":
                self._links.handler.lose(self, gone=False, before=part["before"])
            elif part["kind"] != "pong":
                try:
                    self._links.handler.hear(self, part)
                except Exception:  # of another version of this package; the rest of the message may be understood
                    logger.exception("What another worker has said could not be handled.")

    def stop(self) -> None:
        """Nobody is there to hear: say nothing until ``start``."""
        self._is_stopped = True
        self._outbox.clear()
        if self._sender is not None:
            self._sender.cancel()  # which may take a while: who speaks after ``start`` does not wait for that
            self._sender = self._failing_since = self._again = None
            self._last_sent += 1  # what was being sent may have arrived, so its number is not used again

    def start(self) -> None:
        self._is_stopped = False


class Links:
    """The place of this worker among the others: its own channel, and a link to each worker it has to do with.

    Args:
        layer: the channel layer that the workers have in common.
        handler: is told what others say, and what is lost.
    """

    channel = ""
    """What this worker is called by the others; empty until the layer has worked once."""

    def __init__(self, layer: BaseChannelLayer, handler: MessageHandler) -> None:
        self.handler = handler
        self._layer = layer
        self._links: dict[str, Link] = {}
        self._gone: dict[str, float] = {}
        """When each was last asked; never again, for one that has said so itself."""
        self._outages = health.outages
        """How many outages of the layer this worker has recovered from."""
        self._may_be_forgotten = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hear others for as long as the block lasts; at its end, tell them that this worker is gone."""
        try:
            joined = await self._join(SEND_SECONDS if health.available else AGAIN_SECONDS)
            self._start(self._stay_joined(joined))
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for link in self._links.values():
                link.stop()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._say_goodbye()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done for as long as the links are open, or until it is over."""
        task = asyncio.create_task(work, name="mcp_serving links")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, within: float = SEND_SECONDS) -> bool:
        try:
            async with asyncio.timeout(within):
                if not self.channel:
                    # Of the layer's own prefix: of channels with different ones, channels_redis lets a process
                    # receive on one at a time.
                    self.channel = await channel_layer.new_channel(self._layer)
                    self._start(self._receive())
                await self._layer.group_add(WORKERS, self.channel)
        except Exception as error:
            health.record_failure(error)
            return False
        self._recovered()
        return True

    async def _stay_joined(self, joined: bool) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REJOIN_SECONDS if joined else TICK):
                    await self._may_be_forgotten.wait()
            self._may_be_forgotten.clear()
            joined = await self._join()

    async def _say_goodbye(self) -> None:
        if not health.available:  # each handler would wait for it, one after the other
            return
        with suppress(Exception):  # who is told nothing finds out
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._layer.group_discard(WORKERS, self.channel)
        await self._tell_all("gone", self.channel)

    async def _tell_all(self, what: str, channel: str) -> None:
        """Tell every worker that one of them is ``gone``, ``silent`` or ``here``; who is told nothing finds out."""
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._layer.group_send(WORKERS, {"about": channel, "what": what})

    def to(self, channel: str) -> Link | None:
        """The link to a worker; None for one that is gone."""
        if channel in self._gone:
            self._knock(channel)
            return None
        return self._link(channel)

    def _link(self, channel: str) -> Link:
        link = self._links.get(channel)
        if link is None:
            link = self._links[channel] = Link(self, channel)
        return link

    def _knock(self, channel: str) -> None:
        """It may only have been held up, for longer than what was said to it was kept: then nobody would ever know."""
        now = time.monotonic()
        if now - self._gone[channel] >= KNOCK_SECONDS:
            self._gone[channel] = now
            link = self._link(channel)
            link.start()
            link.say({"kind": "ping"})

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        """Send a whole message, or raise."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._layer.send(channel, message)
        except ChannelFull:
            raise
        except Exception as error:
            health.record_failure(error)
            raise
        self._recovered()

    # Whether the layer works

    def _recovered(self) -> None:
        recovers = not health.available or self._outages != health.outages
        health.record_success()
        self._outages = health.outages
        if recovers:
            self._may_be_forgotten.set()
            self._forgive()

    def _forgive(self) -> None:
        """Nobody could be heard: the silence is nobody's fault."""
        for link in self._links.values():
            link.heard = time.monotonic()

    # Hearing

    async def _receive(self) -> None:
        while True:
            try:
                message = await self._layer.receive(self.channel)
            except Exception as error:
                if type(error).__name__ != "TimeoutError":  # redis-py 8 knows no blocking command: there is no message
                    health.record_failure(error)
                    await asyncio.sleep(0.1)
                continue
            self._recovered()
            try:
                self._hear(message)
            except Exception:  # as above
                logger.exception("A message of another worker could not be handled.")

    def _hear(self, message: dict[str, Any]) -> None:
        if "about" in message:
            self._hear_about(message["about"], message["what"])
            return
        self._find_again(message["from"])
        self._link(message["from"]).hear(message)

    def _hear_about(self, channel: str, what: str) -> None:
        if channel == self.channel:
            if what == "silent":  # this worker was only held up
                self._start(self._tell_all("here", channel))
        elif what == "here":
            self._find_again(channel)
        elif what == "gone" or self._has_been_silent(channel):
            self._take_for_gone(channel, asked=math.inf if what == "gone" else time.monotonic())

    def _has_been_silent(self, channel: str) -> bool:
        """Whether it has said nothing here either, so that nobody has to find out anew."""
        link = self._links.get(channel)
        return link is None or time.monotonic() - link.heard > 1.5 * TICK

    # Who is still there

    def watch(self) -> None:
        """Something is in hand with another worker now: look from time to time whether that is still there."""
        if self._timer is None:
            self._last_tick = time.monotonic()
            # An empty context, which it hands on: it must not keep the request that happened to be first.
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick, context=Context())

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._last_tick > 2 * TICK:
            self._forgive()  # this process was held up, and has not read what they said
        self._last_tick = now
        for link in list(self._links.values()):
            if link.waiting:
                self._look_after(link, now - link.heard)
            elif link.watched and now - link.heard > 2 * PATIENCE:
                self.handler.lose(link, gone=True)
        busy = any(link.waiting or link.watched for link in self._links.values())
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick) if busy else None

    def _look_after(self, link: Link, silence: float) -> None:
        if silence <= PATIENCE:
            link.say({"kind": "ping"})
        elif health.available:
            logger.warning("Another worker is gone, and with it its sessions: it has said nothing for %g s.", PATIENCE)
            self._take_for_gone(link.channel, asked=time.monotonic())
            self._start(self._tell_all("silent", link.channel))
        else:
            self.handler.lose(link, gone=False)

    def _take_for_gone(self, channel: str, *, asked: float) -> None:
        self._gone[channel] = asked
        link = self._links.get(channel)
        if asked == math.inf:
            self._links.pop(channel, None)
        if len(self._gone) > REMEMBERED:
            forgotten = next(iter(self._gone))
            del self._gone[forgotten]
            self._links.pop(forgotten, None)
        if link is not None:
            link.stop()
            self.handler.lose(link, gone=True)

    def _find_again(self, channel: str) -> None:
        """It was only silent for long."""
        if channel in self._gone:
            del self._gone[channel]
            if (link := self._links.get(channel)) is not None:
                link.start()
