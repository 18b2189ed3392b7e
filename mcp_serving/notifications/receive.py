"""Hearing the events of other processes: one task for each MCP server and event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mcp_serving.loading import in_one_line
from mcp_serving.notifications.publish import ATTEMPTS, GROUP, here, others, tried

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

JOIN_SECONDS = 5.0
"""How long the layer may take to answer."""

START_SECONDS = 2.0
"""How long a server waits for it at its start: then it serves, and joins when the layer is there."""

REJOIN_SECONDS = 30.0
"""How often a member says that it still is one: a layer that was restarted, or expires its groups, forgets it."""

LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts, while the layer is away."""

HEARD_SECONDS = 1.0
"""What fails after so long has worked before."""

LEAVE_SECONDS = 0.5
"""How long a shutdown waits for the layer."""

TURN_SECONDS = 1.0
"""How often an event loop looks whether another one of its process still receives."""

_receiving: list[asyncio.AbstractEventLoop] = []
"""One entry for each task that receives. Of one process, one event loop may, which channels_redis insists on: what it
receives is heard by those of the others too."""
_turn = threading.Lock()


def _may_receive() -> bool:
    loop = asyncio.get_running_loop()
    with _turn:
        if any(each is not loop and not each.is_closed() for each in _receiving):
            return False
        _receiving.append(loop)
        return True


@asynccontextmanager
async def receive_from_other_processes() -> AsyncIterator[None]:
    """While it is open, this process hears what others publish, as far as the project's channel layer allows."""
    try:
        layer = others.layer()
    except Exception as error:  # of the settings: they cost the events, and nothing else
        others.failed(error)
        layer = None
    if layer is None:
        yield
        return
    receiver = _Receiver(layer)
    task = asyncio.create_task(receiver.run(), name="events of other processes")
    try:
        # A client that subscribes as soon as it can misses nothing.
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await receiver.tried.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=2 * LEAVE_SECONDS)


class _Receiver:
    def __init__(self, layer: BaseChannelLayer) -> None:
        self.tried = asyncio.Event()
        """Whether the first attempt to join has come to an end, good or bad."""
        self._layer = layer

    async def run(self) -> None:
        while not _may_receive():
            self.tried.set()
            await asyncio.sleep(TURN_SECONDS)
        try:
            await self._run()
        finally:
            _receiving.remove(asyncio.get_running_loop())

    async def _run(self) -> None:
        channel = member = ""
        pause, failed = 0.0, 0
        while True:
            joined = math.inf
            try:
                # Of the layer's default prefix, as Channels' own consumers have: one lock of channels_redis is held by
                # whoever receives for all channels with a prefix, and those of another one would wait for it.
                channel = channel or await self._layer.new_channel()
                await self._join(channel)
                if member not in ("", channel):
                    await self._leave(member)
                member, joined = channel, time.monotonic()
                self.tried.set()
                await self._hear(channel)
            except Exception as error:
                if math.isinf(joined):
                    others.failed(error)
                    channel = ""  # the layer of channels_redis.pubsub forgets one whose receive() was cancelled
                elif time.monotonic() - joined > HEARD_SECONDS:
                    # Whether the layer is away shows at the next attempt to join. With redis-py from 8.0 on, receive()
                    # of channels_redis fails after five seconds without a message (channels_redis issue 422).
                    logger.debug("Receiving begins anew (%s).", in_one_line(error))
                    pause, failed = 0.0, 0
                else:
                    failed += 1
                    if failed > ATTEMPTS:  # before, it may have been old connections
                        others.failed(error)
            self.tried.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause + 0.1, LONGEST_PAUSE_SECONDS)

    async def _hear(self, channel: str) -> None:
        """Hear events until something fails."""
        tasks = {asyncio.create_task(self._receive(channel)), asyncio.create_task(self._rejoin(channel))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._leave(channel)
            raise
        finally:
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # seen: it may have failed while it was cancelled
        for task in done:
            task.result()

    async def _join(self, channel: str) -> None:
        async with asyncio.timeout(JOIN_SECONDS):
            await tried(lambda: self._layer.group_add(GROUP, channel))
        others.answered()

    async def _leave(self, channel: str) -> None:
        if others.away:
            return
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._layer.group_discard(GROUP, channel)

    async def _rejoin(self, channel: str) -> None:
        while True:
            await asyncio.sleep(REJOIN_SECONDS)
            await self._join(channel)

    async def _receive(self, channel: str) -> None:
        while True:
            event = await self._layer.receive(channel)
            try:
                here.deliver(event)
            except Exception as error:  # of another version of this package
                logger.warning("An event of another process was not understood (%s).", in_one_line(error))
            await asyncio.sleep(0)  # between the events of a burst, the listeners send
