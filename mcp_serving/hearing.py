"""Hearing the events of other processes: one task for each MCP server and event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mcp_serving.events import GROUP, here, in_one_line, others

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

LEAVE_SECONDS = 0.5
"""How long a shutdown waits for the layer."""


@asynccontextmanager
async def events_of_other_processes() -> AsyncIterator[None]:
    """While it is open, this process hears what others publish, as far as the project's channel layer allows."""
    try:
        layer = others.layer()
    except Exception as error:  # of the settings: they cost the events, and nothing else
        others.failed(error)
        layer = None
    if layer is None:
        yield
        return
    hearing = _Hearing(layer)
    task = asyncio.create_task(hearing.run(), name="events of other processes")
    try:
        # A client that subscribes as soon as it can misses nothing.
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await hearing.tried.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=2 * LEAVE_SECONDS)


class _Hearing:
    def __init__(self, layer: BaseChannelLayer) -> None:
        self.tried = asyncio.Event()
        """Whether the first attempt to join has come to an end, good or bad."""
        self._layer = layer
        self._pause = 0.0

    async def run(self) -> None:
        while True:
            try:
                # A new one each time: the pub/sub layer forgets a channel that nobody receives on any more.
                # Of the layer's default prefix, as Channels' own consumers have: one lock of channels_redis is held by
                # whoever receives for all channels with a prefix, and those of another one would wait for it.
                await self._hear(await self._layer.new_channel())
            except Exception as error:
                others.failed(error)
            self.tried.set()
            self._pause = min(2 * self._pause + 0.1, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(self._pause)

    async def _hear(self, channel: str) -> None:
        """Hear events until something fails."""
        await self._join(channel)
        tasks = {asyncio.create_task(self._receive(channel)), asyncio.create_task(self._rejoin(channel))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._leave(channel)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
        for task in done:
            task.result()

    async def _join(self, channel: str) -> None:
        async with asyncio.timeout(JOIN_SECONDS):
            await self._layer.group_add(GROUP, channel)
        others.answered()
        self._pause = 0.0
        self.tried.set()

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
