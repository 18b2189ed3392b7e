"""One timer of the event loop for many objects. Most objects are discarded before they are called."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Protocol


class Timed(Protocol):
    """An object that the timer calls."""

    def on_time(self) -> None:
        """Called by the timer, in an empty context. It may have been discarded just before."""


class SharedTimer:
    """Calls ``on_time`` of each object between one and two periods after ``add``, unless it is discarded before.

    Args:
        period: in seconds.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._added: dict[Timed, None] = {}
        """Added since the last tick: called at the tick after the next."""
        self._next: dict[Timed, None] = {}
        """Called at the next tick."""
        self._is_running = False

    def add(self, timed: Timed) -> None:
        self._added[timed] = None
        if not self._is_running:
            self._is_running = True
            self._start()

    def discard(self, timed: Timed) -> None:
        self._added.pop(timed, None)
        self._next.pop(timed, None)

    def _start(self) -> None:
        # An empty context, so that the timer does not keep the context of a request alive.
        asyncio.get_running_loop().call_later(self._period, self._tick, context=Context())

    def _tick(self) -> None:
        due, self._next, self._added = self._next, self._added, {}
        if self._next:
            self._start()
        else:
            self._is_running = False
        loop = asyncio.get_running_loop()
        for timed in due:
            loop.call_soon(timed.on_time)  # an exception of one ends no other
