"""A context manager that its own task enters and leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Generic, TypeVar

import anyio

from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import CANCELLED_SECONDS

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LifespanTask(Generic[T]):
    """An async context manager held open by a task of its own, so that the task that leaves it entered it.

    ``open`` may be called at any time, by any number of tasks: the manager is entered once, and entered
    again after it failed or was closed, never before the last one is left. ``manager`` makes a new one for
    every entry. One that ends by itself, such as a task group that fails, is logged and counts as closed;
    ``on_broken`` is then told why.
    """

    def __init__(
        self,
        name: str,
        manager: Callable[[], AbstractAsyncContextManager[T]],
        on_broken: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._name = name
        self._manager = manager
        self._on_broken = on_broken
        self._leave = asyncio.Event()
        self._leaving = asyncio.Lock()
        self._entered: asyncio.Future[T] | None = None
        self._owner: asyncio.Task[None] | None = None

    async def open(self) -> T:
        """Enter the manager, unless it is entered already, and return its value.

        Raises:
            Exception: whatever entering it raised; the next call tries again.
        """
        if self._entered is None or self._failed:
            self._leave = asyncio.Event()
            self._entered = asyncio.get_running_loop().create_future()
            # An empty context: what belongs to the request that happened to be the first must not leak in.
            self._owner = asyncio.create_task(self._own(self._entered, self._leave), name=self._name, context=Context())
        return await asyncio.shield(self._entered)

    @property
    def value(self) -> T | None:
        """What entering the manager returned, while it is entered."""
        if self._entered is None or not self._entered.done() or self._failed:
            return None
        return self._entered.result()

    @property
    def _failed(self) -> bool:
        return self._entered is not None and self._entered.done() and self._entered.exception() is not None

    async def _own(self, entered: asyncio.Future[T], leave: asyncio.Event) -> None:
        try:
            async with self._leaving:
                pass  # the one before is left, or given up
            async with self._manager() as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if leave.is_set() and entered.done():
                raise
            if entered.done():
                self._broke(error)
                return
            entered.set_exception(
                RuntimeError(f"the {self._name} was stopped while it started")
                if isinstance(error, asyncio.CancelledError)
                else error
            )
            entered.exception()  # seen: nobody may be left to await it
        else:
            if not leave.is_set():
                self._broke(None)

    def _broke(self, error: BaseException | None) -> None:
        if not is_being_cancelled():
            logger.error("The %s has ended by itself.", self._name, exc_info=error)
        self._entered = self._owner = None
        if self._on_broken is not None:
            self._on_broken(error)

    async def close(self, deadline: Deadline, share: float = 1.0) -> bool:
        """Leave the manager; False if that was cut short, at (the share of) the deadline.

        Raises:
            Exception: whatever leaving it raised.
        """
        owner = self._owner
        if owner is None:
            return True
        self._owner, entered, self._entered = None, self._entered, None
        self._leave.set()
        if entered is not None and not entered.done():
            owner.cancel()
        async with self._leaving:
            with deadline.scope(share):
                await asyncio.wait({owner})
            in_time = owner.done()
            if not in_time:
                owner.cancel()
                with anyio.move_on_after(CANCELLED_SECONDS):
                    await asyncio.wait({owner})
        if owner.done() and not owner.cancelled() and (error := owner.exception()) is not None:
            raise error
        return in_time


def is_being_cancelled() -> bool:
    """Whether the running task is, as all are when their event loop ends."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
