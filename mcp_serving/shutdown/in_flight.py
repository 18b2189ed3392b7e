"""What is in flight: the one place that the shutdown asks what it has to wait for, and what to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

CANCELLED_SECONDS = 0.1
"""How long something that was cancelled may take to notice, before the shutdown goes on without it."""


class InFlightRequest:
    """One request in flight, from its arrival until its answer is handed to the wire.

    An HTTP request, a WebSocket connection or a JSON-RPC request over stdio. It is either a *call*, whose
    answer a shutdown waits for, or *standing* (a GET stream, ``subscriptions/listen``, a WebSocket), which
    a shutdown ends.
    """

    def __init__(self, in_flight: InFlightRequests, what: str, *, standing: bool) -> None:
        self.what = what
        self.task: asyncio.Task[object] | None = None
        """The ASGI application's task."""
        self.answer_instead: Callable[[], Awaitable[None]] | None = None
        """Ends the response without the application."""
        self.may_ask = False
        """Its handler can ask the client something, whose answer comes as another HTTP request."""
        self.ended = False
        self.on_end: Callable[[], None] | None = None
        self._ends_itself = False
        self._handler: anyio.CancelScope | None = None
        self._handler_task: asyncio.Task[object] | None = None
        self._given_up = False
        self._ledger = in_flight
        self._standing = standing

    @property
    def standing(self) -> bool:
        return self._standing

    @property
    def draining(self) -> bool:
        """Whether a shutdown waits for it."""
        return self._ledger.draining

    def lose_reader(self) -> None:
        """Its client has stopped reading the answer; in a shutdown that is an answer lost."""
        if self.draining:
            self._ledger.unread += 1

    def stand(self, *, ends_itself: bool = False) -> None:
        """From now on it is a standing stream; ``ends_itself`` where its handler has been told by other means."""
        self._standing = True
        self._ends_itself = ends_itself
        self._ledger.changed()

    def end(self) -> None:
        """End a standing stream, as if its client had left."""
        if self._ends_itself:
            return
        self.ended = True
        if self.on_end is not None:
            self.on_end()
        elif self._handler is not None:
            self._handler.cancel()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Around the MCP handler: what ``cancel`` cancels, so that the client can still have an answer.

        Raises:
            CancelledError: after ``give_up``.
        """
        self._ledger.handled.add(self)
        self._handler_task = asyncio.current_task()
        try:
            with anyio.CancelScope() as self._handler:
                yield
            if self._given_up:
                raise asyncio.CancelledError
        finally:
            self._handler = self._handler_task = None
            self._ledger.handled.discard(self)
            self._ledger.changed()

    def give_up(self, task: asyncio.Task[object]) -> bool:
        """Cancel the MCP handler if it runs in this task, for good: nobody is left to read an answer.

        Returns:
            False if it does not: in an older session, it has a task of its own.
        """
        if self._handler is None or self._handler_task is not task:
            return False
        self._given_up = True
        self._handler.cancel()
        return True

    def cancel(self) -> None:
        """Cancel its MCP handler, so that the client still has an answer; what has none is told to end."""
        if self._handler is not None:
            self._handler.cancel()
        else:
            # Not its task: Django's ASGI handler, if cancelled, leaves the view running that it waits for.
            self.end()

    async def abandon(self) -> None:
        """Answer in place of what ``cancel`` could not end, such as the wait for a thread, and forget it."""
        if self.answer_instead is not None:
            # Where the web server waits for its client to read, this may be for ever.
            with anyio.move_on_after(CANCELLED_SECONDS):
                await self.answer_instead()
        if self.task is not None:
            self.task.cancel()
        self.close()

    def close(self) -> None:
        self._ledger.close(self)


class InFlightRequests:
    """The exchanges in flight. Waiting is by event: whoever closes the last one wakes the shutdown."""

    def __init__(self) -> None:
        self.draining = False
        """True from the start of a shutdown: what arrives now is refused."""
        self.unread = 0
        """How many answers a shutdown has given up on, because their clients had stopped reading."""
        self.handled: set[InFlightRequest] = set()
        """Those whose MCP handler runs; in a session it runs on when the client that waited for it has left."""
        self._open: dict[InFlightRequest, None] = {}
        self._changed = asyncio.Event()

    def open(self, what: str, *, standing: bool = False) -> InFlightRequest:
        exchange = InFlightRequest(self, what, standing=standing)
        self._open[exchange] = None
        return exchange

    def close(self, exchange: InFlightRequest) -> None:
        self._open.pop(exchange, None)
        self.changed()

    def changed(self) -> None:
        self._changed.set()

    @property
    def names(self) -> list[str]:
        """What is in flight, as an error names it."""
        return [exchange.what for exchange in self._open]

    @property
    def calls(self) -> list[InFlightRequest]:
        return [exchange for exchange in self._open if not exchange.standing]

    @property
    def streams(self) -> list[InFlightRequest]:
        return [exchange for exchange in self._open if exchange.standing]

    @property
    def left(self) -> set[InFlightRequest]:
        """All that is still running, whether somebody waits for it or not."""
        return self._open.keys() | self.handled

    async def questions_over(self) -> None:
        """Return once no call in flight can ask its client anything over HTTP."""
        await self._until(lambda: not any(call.may_ask for call in self.calls))

    async def calls_answered(self) -> None:
        """Return once no call is in flight."""
        await self._until(lambda: not self.calls)

    async def empty(self) -> None:
        """Return once nothing at all is in flight."""
        await self._until(lambda: not self._open)

    async def settled(self) -> None:
        """Return once nothing runs any more, not even for a client that has left."""
        await self._until(lambda: not self.left)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()


def listed(names: list[str], most: int = 10) -> str:
    """What is in flight, as an error lists it."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
