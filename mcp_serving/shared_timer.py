"""One timer of the event loop for many objects, most of which do not need it any more when their time comes."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Protocol


class Waiting(Protocol):
    """An object that waits for its time."""

    def on_time(self) -> None:
        """Its time has come. The running context is empty."""


class SharedTimer:
    """Calls ``on_time`` of each object between one and two periods after ``add``, unless it is discarded before.

    Args:
        period: in seconds.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._added: dict[Waiting, None] = {}
        """Since the last tick."""
        self._next: dict[Waiting, None] = {}
        """To be called at the next tick."""
        self._is_running = False

    def add(self, waiting: Waiting) -> None:
        self._added[waiting] = None
        if not self._is_running:
            self._is_running = True
            self._start()

    def discard(self, waiting: Waiting) -> None:
        self._added.pop(waiting, None)
        self._next.pop(waiting, None)

    def _start(self) -> None:
        # An empty context, so that it does not keep the context of one of the requests.
        asyncio.get_running_loop().call_later(self._period, self._tick, context=Context())

    def _tick(self) -> None:
        due, self._next, self._added = self._next, self._added, {}
        if self._next:
            self._start()
        else:
            self._is_running = False
        for waiting in due:
            waiting.on_time()
