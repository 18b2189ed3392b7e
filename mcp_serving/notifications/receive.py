"""Receiving the notifications of other processes: one task for each MCP server and event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mcp_serving.channel_layer import health, shared_layer
from mcp_serving.loading import in_one_line
from mcp_serving.notifications.publish import ATTEMPTS, GROUP, local_buses, retried

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

JOIN_TIMEOUT = 5.0
"""Seconds for which joining the group may take."""

START_TIMEOUT = 2.0
"""Seconds for which the start of a server waits for the first attempt to join. Then it serves, and joins later."""

REJOIN_INTERVAL = 30.0
"""Seconds between two attempts to join again. A layer forgets its groups when it restarts or when they expire."""

MAX_PAUSE = 5.0
"""Seconds between two attempts during an outage, at the most."""

WORKING_SECONDS = 1.0
"""A layer that fails later than this after joining had worked before."""

LEAVE_TIMEOUT = 0.5
"""Seconds for which a shutdown waits for the layer."""

TAKE_OVER_INTERVAL = 1.0
"""Seconds after which an event loop looks again whether another one of its process still receives."""

_receiving_loops: list[asyncio.AbstractEventLoop] = []
"""One entry for each task that receives. channels_redis lets one event loop of a process receive. The buses of the
other event loops get the notifications from it."""
_receiving_lock = threading.Lock()


def _claim_receiving() -> bool:
    """Whether the running event loop may receive, because no other one of this process does."""
    loop = asyncio.get_running_loop()
    with _receiving_lock:
        if any(other is not loop and not other.is_closed() for other in _receiving_loops):
            return False
        _receiving_loops.append(loop)
        return True


@asynccontextmanager
async def receive_from_other_processes() -> AsyncIterator[None]:
    """Deliver the notifications of other processes here for as long as the block lasts."""
    try:
        layer = shared_layer()
    except Exception as error:  # a wrong setting stops the notifications of other processes, and nothing else
        health.record_failure(error)
        layer = None
    if layer is None:
        yield
        return
    receiver = _Receiver(layer)
    task = asyncio.create_task(receiver.run(), name="notifications of other processes")
    try:
        # So that a client that subscribes immediately misses nothing.
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT):
                await receiver.tried.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=2 * LEAVE_TIMEOUT)


class _Receiver:
    def __init__(self, layer: BaseChannelLayer) -> None:
        self.tried = asyncio.Event()
        """Set once the first attempt to join has succeeded or failed."""
        self._layer = layer

    async def run(self) -> None:
        while not _claim_receiving():
            self.tried.set()
            await asyncio.sleep(TAKE_OVER_INTERVAL)
        try:
            await self._run()
        finally:
            _receiving_loops.remove(asyncio.get_running_loop())

    async def _run(self) -> None:
        channel = member = ""
        pause, failures = 0.0, 0
        while True:
            joined = math.inf
            try:
                # With the layer's default prefix, which Channels' consumers have too. channels_redis has one lock for
                # everything that a process receives; with another prefix, the consumers would wait for it.
                channel = channel or await self._layer.new_channel()
                await self._join(channel)
                if member not in ("", channel):
                    await self._leave(member)
                member, joined = channel, time.monotonic()
                self.tried.set()
                await self._receive_until_failure(channel)
            except Exception as error:
                if math.isinf(joined):
                    health.record_failure(error)
                    channel = ""  # channels_redis.pubsub forgets a channel when its receive() is cancelled
                elif time.monotonic() - joined > WORKING_SECONDS:
                    # The next attempt to join shows whether there is an outage. With redis-py 8.0 or later, receive()
                    # of channels_redis fails after five seconds without a message (channels_redis issue 422).
                    logger.debug("Receiving starts again (%s).", in_one_line(error))
                    pause, failures = 0.0, 0
                else:
                    failures += 1
                    if failures > ATTEMPTS:  # fewer failures may come from old connections
                        health.record_failure(error)
            self.tried.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause + 0.1, MAX_PAUSE)

    async def _receive_until_failure(self, channel: str) -> None:
        tasks = {asyncio.create_task(self._receive(channel)), asyncio.create_task(self._rejoin(channel))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._leave(channel)
            raise
        finally:
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=LEAVE_TIMEOUT)
            for task in ended:
                if not task.cancelled():
                    task.exception()  # retrieved: asyncio would log an exception that nobody retrieves
        for task in done:
            task.result()

    async def _join(self, channel: str) -> None:
        async with asyncio.timeout(JOIN_TIMEOUT):
            await retried(lambda: self._layer.group_add(GROUP, channel))
        health.record_success()

    async def _leave(self, channel: str) -> None:
        if not health.available:
            return
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self._layer.group_discard(GROUP, channel)

    async def _rejoin(self, channel: str) -> None:
        while True:
            await asyncio.sleep(REJOIN_INTERVAL)
            await self._join(channel)

    async def _receive(self, channel: str) -> None:
        while True:
            change = await self._layer.receive(channel)
            try:
                local_buses.deliver(change)
            except Exception as error:  # from a process with another version of this package
                logger.warning("A notification of another process was not understood (%s).", in_one_line(error))
            await asyncio.sleep(0)  # many may arrive at once; the listeners send theirs in between
