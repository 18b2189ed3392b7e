"""A queue whose thread delivers items in batches. The number of items is limited. A shutdown waits for the delivery."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import WeakSet

from django.db import close_old_connections, connections

from mcp_serving.threads import check_kept_connections

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAITING = 10_000
"""The most items that wait. If there are more, the oldest are dropped."""

_BATCH = 500
_RETRY_SECONDS = 2.0
_IDLE_SECONDS = 60.0
"""Seconds without an item, after which the thread closes its connections, even if ``CONN_MAX_AGE`` is longer."""

_REPORT_SECONDS = 60.0
"""Seconds between two log lines about dropped items."""

_queues: WeakSet[RecordQueue[object]] = WeakSet()


class RecordQueue(Generic[T]):
    """One queue and its thread, which starts with the first item. The thread does not keep the process alive.

    Args:
        what: names the items in log lines.
        deliver: called in the thread with a batch. If it raises an exception, the batch is delivered again later.
        delay: seconds for which items are collected for a batch.
    """

    def __init__(self, what: str, deliver: Callable[[Sequence[T]], None], *, delay: float = 0.0) -> None:
        self._what = what
        self._deliver = deliver
        self._delay = delay
        self.begin_anew()
        _queues.add(self)  # type: ignore[arg-type] # the items do not matter there

    def begin_anew(self) -> None:
        """Be empty and without a thread: at first, and in a forked process. Its parent delivers the items."""
        self._items: deque[T] = deque()
        self._in_delivery = 0
        self._dropped = 0
        self._reported_at = -_REPORT_SECONDS
        self._has_failed = False
        self._flushed: list[Callable[[], object]] = []
        """Called when nothing waits any more, or when the delivery has failed."""
        self._changed = threading.Condition()  # a new one, because a thread of the parent may have held the lock
        self._thread: threading.Thread | None = None
        self._thread_waits = False
        """Whether the thread waits for the first item."""

    def put(self, item: T) -> None:
        """Add an item. It never waits for the delivery, and seldom takes the lock."""
        self._items.append(item)  # first: the thread says that it waits, and then looks for items
        if self._thread_waits or len(self._items) >= _BATCH or self._thread is None:
            self._wake()
        if self._dropped:
            self._report_dropped()

    def _wake(self) -> None:
        with self._changed:
            self._drop_oldest()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"mcp-serving {self._what}", daemon=True)
                self._thread.start()
            if self._thread_waits or len(self._items) == _BATCH:  # to wake the thread costs more than to add an item
                self._changed.notify()

    async def flush(self, seconds: float) -> None:
        """Wait until all items are delivered, until a delivery fails, or until these seconds are over.

        The number of items that are left is logged.
        """
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            if self._items or self._in_delivery:
                self._flushed.append(lambda: loop.call_soon_threadsafe(flushed.set))
                self._changed.notify()
            else:
                flushed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await flushed.wait()
        with self._changed:
            left = len(self._items) + self._in_delivery
        self._report_dropped(at_once=True)
        if left:
            logger.error("Lost at the shutdown, because they were not delivered in time: %s (%d).", self._what, left)

    # In the thread

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            try:
                self._deliver(batch)
            except BaseException as error:  # also SystemExit, which would end the thread
                self._put_back(batch, error)
            else:
                self._has_failed = False
            finally:
                close_old_connections()
            self._after_delivery()

    def _next_batch(self) -> list[T]:
        if not self._wait_for_items(_IDLE_SECONDS):
            connections.close_all()
            self._wait_for_items(None)
        check_kept_connections()
        with self._changed:
            if self._delay:
                self._changed.wait_for(lambda: self._flushed or len(self._items) >= _BATCH, self._delay)
            batch = [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]
            self._in_delivery = len(batch)
            return batch

    def _wait_for_items(self, seconds: float | None) -> bool:
        with self._changed:
            self._thread_waits = True
            try:
                return self._changed.wait_for(lambda: bool(self._items), seconds)
            finally:
                self._thread_waits = False

    def _put_back(self, batch: list[T], error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.error("%s cannot be delivered, which is retried: %s", self._what.capitalize(), error)
        with self._changed:
            self._items.extendleft(reversed(batch))
            self._in_delivery = 0
            self._drop_oldest()
            self._changed.wait_for(lambda: self._flushed, _RETRY_SECONDS)

    def _after_delivery(self) -> None:
        with self._changed:
            self._in_delivery = 0
            flushed = self._flushed if self._has_failed or not self._items else []
            callbacks = list(flushed)
            flushed.clear()
        for callback in callbacks:
            with suppress(RuntimeError):  # its event loop is closed
                callback()
        self._report_dropped()

    # Dropped items

    def _drop_oldest(self) -> None:
        while len(self._items) > MAX_WAITING:
            self._items.popleft()
            self._dropped += 1

    def _report_dropped(self, *, at_once: bool = False) -> None:
        with self._changed:
            now = time.monotonic()
            dropped = self._dropped
            if not dropped or not (at_once or now - self._reported_at >= _REPORT_SECONDS):
                return
            self._dropped, self._reported_at = 0, now
        logger.error("Dropped the oldest %s, because they could not be delivered in time: %d.", self._what, dropped)


def _begin_anew() -> None:
    for queue in _queues:
        queue.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


async def flush_queues(seconds: float) -> None:
    """Flush all queues of the process."""
    await asyncio.gather(*(queue.flush(seconds) for queue in list(_queues)))
