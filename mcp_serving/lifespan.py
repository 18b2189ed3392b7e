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
    """A task that enters an async context manager and leaves it: anyio requires the same task for both.

    Any number of tasks may call ``open``, at any time: the manager is entered once. After it has failed or was closed,
    it is entered again, but only when it has been left.

    Args:
        name: for error messages.
        manager: returns a new context manager each time it is entered.
        on_ended: called when the manager has ended by itself, with the exception if there is one. A task group whose
            task fails, for example, ends by itself. That is logged, and counts as closed.
    """

    def __init__(
        self,
        name: str,
        manager: Callable[[], AbstractAsyncContextManager[T]],
        on_ended: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self._name = name
        self._manager = manager
        self._on_ended = on_ended
        self._leave = asyncio.Event()
        self._leaving = asyncio.Lock()
        self._entered: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> T:
        """Enter the manager, unless it is entered already, and return its value.

        Raises:
            Exception: whatever entering it raised. The next call tries again.
        """
        if self._entered is None or self._failed:
            self._leave = asyncio.Event()
            self._entered = asyncio.get_running_loop().create_future()
            # An empty context: the manager must not inherit the context of the request that happens to be the first.
            self._task = asyncio.create_task(self._run(self._entered, self._leave), name=self._name, context=Context())
        return await asyncio.shield(self._entered)

    @property
    def value(self) -> T | None:
        """The value of the manager while it is entered."""
        if self._entered is None or not self._entered.done() or self._failed:
            return None
        return self._entered.result()

    @property
    def _failed(self) -> bool:
        return self._entered is not None and self._entered.done() and self._entered.exception() is not None

    async def _run(self, entered: asyncio.Future[T], leave: asyncio.Event) -> None:
        try:
            async with self._leaving:
                pass  # the manager of before is left, or abandoned
            async with self._manager() as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if leave.is_set() and entered.done():
                raise
            if entered.done():
                self._ended(error)
                return
            entered.set_exception(
                RuntimeError(f"the {self._name} was stopped while it started")
                if isinstance(error, asyncio.CancelledError)
                else error
            )
            entered.exception()  # marks it as retrieved: perhaps nobody awaits it any more
        else:
            if not leave.is_set():
                self._ended(None)

    def _ended(self, error: BaseException | None) -> None:
        if not is_being_cancelled():
            logger.error("The %s has ended by itself.", self._name, exc_info=error)
        self._entered = self._task = None
        if self._on_ended is not None:
            self._on_ended(error)

    async def close(self, deadline: Deadline, share: float = 1.0) -> bool:
        """Leave the manager; False if the deadline, or its share, interrupted that.

        Raises:
            Exception: whatever leaving it raised.
        """
        task = self._task
        if task is None:
            return True
        self._task, entered, self._entered = None, self._entered, None
        self._leave.set()
        if entered is not None and not entered.done():
            task.cancel()
        async with self._leaving:
            with deadline.scope(share):
                await asyncio.wait({task})
            in_time = task.done()
            if not in_time:
                task.cancel()
                with anyio.move_on_after(CANCELLED_SECONDS):
                    await asyncio.wait({task})
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
        return in_time


def is_being_cancelled() -> bool:
    """Whether the running task is cancelled, as all tasks are at the end of their event loop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
