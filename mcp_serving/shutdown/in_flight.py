"""The requests in flight: a shutdown asks here which responses it waits for, and what it ends or cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum, auto
from functools import cache
from typing import Any, Protocol

import anyio

from mcp_serving.logs import RequestName
from mcp_serving.shared_timer import SharedTimer

WATCH_SECONDS = 0.25
"""Most calls are answered within this time. After one to two periods, a task watches whether the client leaves."""

CANCELLED_SECONDS = 0.1
"""Seconds that a cancelled task has to end. Then the shutdown goes on without it."""


class Kind(Enum):
    """What a shutdown does about a request in flight."""

    CALL = auto()
    """It waits for the response."""
    STREAM = auto()
    """It ends the stream as if the client had left: a GET stream, a WebSocket."""
    SUBSCRIPTION = auto()
    """It waits: the handler ends the stream, because the shutdown has closed all ``subscriptions/listen`` streams."""


class State(Enum):
    """Whether a request in flight is still wanted."""

    RUNNING = auto()
    ENDED = auto()
    """A shutdown has ended it."""
    CLIENT_LEFT = auto()
    """Nobody reads a response any more."""


class Connection(Protocol):
    """The connection on which a web server has received a request."""

    def disconnect(self) -> bool:
        """Tell the application that its client has left; False if the application does not wait for the client."""

    def runs_in(self, task: asyncio.Task[object]) -> bool:
        """Whether the application runs in this task."""

    async def finish(self) -> None:
        """End the response in place of the application, and cancel the application."""


class InFlightRequest:
    """An HTTP request, a WebSocket connection, or a JSON-RPC request over stdio, until its response is written.

    Args:
        requests: all requests that the same shutdown waits for.
        name: how errors and log lines name it.
        kind: what a shutdown does about it.
        connection: the client's side of it; None over stdio.
    """

    __slots__ = ("__weakref__", "_expiry", "_handler", "_name", "_requests", "connection", "kind", "state")

    def __init__(
        self,
        requests: InFlightRequests,
        name: str | RequestName,
        kind: Kind = Kind.CALL,
        connection: Connection | None = None,
    ) -> None:
        self._name = name
        self.kind = kind
        self.state = State.RUNNING
        self.connection = connection
        self._expiry: asyncio.TimerHandle | None = None
        self._handler: _RunningHandler | None = None
        self._requests = requests

    @property
    def name(self) -> str:
        """The request as a log line names it."""
        return str(self._name)

    @name.setter
    def name(self, name: str | RequestName) -> None:
        self._name = name

    @property
    def draining(self) -> bool:
        """Whether a shutdown waits for it."""
        return self._requests.draining

    def become_stream(self, kind: Kind = Kind.STREAM, lifetime: float | None = None) -> None:
        """From now on it is a stream, which a shutdown does not wait for.

        Args:
            kind: what a shutdown does about it.
            lifetime: the stream ends after this number of seconds; None for no limit.
        """
        self.kind = kind
        if lifetime is not None:
            self._expiry = asyncio.get_running_loop().call_later(lifetime, self._end)
        self._requests.update(self)

    def may_ask_client(self) -> None:
        """From now on its handler may ask the client something; the answer comes as another HTTP request."""
        self._requests.add_asking(self)

    def lose_reader(self) -> None:
        """Its client has stopped reading the response, which a shutdown reports."""
        if self.draining:
            self._requests.unread += 1

    def end(self) -> None:
        """End a stream, as if its client had left."""
        if self.kind is not Kind.SUBSCRIPTION:
            self._end()

    def _end(self) -> None:
        self.state = State.ENDED
        waits_for_client = self.connection is not None and self.connection.disconnect()
        if not waits_for_client and self._handler is not None:
            self._handler.scope.cancel()

    def handled(self) -> AbstractContextManager[None, bool]:
        """Around the MCP handler, so that ``cancel`` can cancel the handler and the client still gets a response.

        Raises:
            CancelledError: after ``client_left``.
        """
        return _RunningHandler(self)

    def handler_runs(self, handler: _RunningHandler | None) -> None:
        """Its MCP handler has started; with None, it has ended."""
        self._handler = handler
        if handler is not None:
            self._requests.handled.add(self)
        else:
            self._requests.handled.discard(self)
            self._requests.changed()

    def client_left(self, task: asyncio.Task[object]) -> bool:
        """Cancel the MCP handler for good if it runs in this task: nobody is left to read a response.

        Returns:
            False if it does not. In a session of a client up to 2025-11-25, the handler has its own task.
        """
        if self._handler is None or self._handler.task is not task:
            return False
        self.state = State.CLIENT_LEFT
        self._handler.scope.cancel()
        return True

    def runs_in(self, task: asyncio.Task[object]) -> bool:
        """Whether the application of an HTTP request runs in this task, and so its MCP handler."""
        return self.connection is not None and self.connection.runs_in(task)

    def cancel(self) -> None:
        """Cancel the MCP handler, so that the client still gets a response; end a request without a handler."""
        if self._handler is not None:
            self._handler.scope.cancel()
        else:
            # Not the task of the application: Django's ASGI handler, if cancelled, leaves its view running.
            self.end()

    async def abandon(self) -> None:
        """Respond in place of an application that ``cancel`` could not end, and stop waiting for it.

        A thread, for example, cannot be cancelled.
        """
        if self.connection is not None:
            # Where the web server waits for the client to read, this might never return.
            with anyio.move_on_after(CANCELLED_SECONDS):
                await self.connection.finish()
        self.close()

    def close(self) -> None:
        """It is answered, or nobody waits for it any more."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._requests.close(self)


@cache
def _scope_class() -> type[anyio.CancelScope]:
    """The class of asyncio's cancel scopes. The lookup by anyio takes longer than the rest of a scope."""
    return type(anyio.CancelScope())


class _RunningHandler:
    """The MCP handler of a request and its task, for the length of a block."""

    __slots__ = ("_request", "scope", "task")

    def __init__(self, request: InFlightRequest) -> None:
        self._request = request
        self.scope = _scope_class()()
        self.task = asyncio.current_task()

    def __enter__(self) -> None:
        self._request.handler_runs(self)
        self.scope.__enter__()

    def __exit__(self, *error: Any) -> bool:
        try:
            is_cancelled = self.scope.__exit__(*error)
            if self._request.state is State.CLIENT_LEFT and (is_cancelled or error[0] is None):
                raise asyncio.CancelledError
            return is_cancelled
        finally:
            self._request.handler_runs(None)


class InFlightRequests:
    """All requests in flight of one server in one event loop.

    Waiting for them costs no polling: each change wakes whoever waits, and each question is answered without looking
    at all requests.
    """

    def __init__(self) -> None:
        self.draining = False
        """True from the start of a shutdown: new requests are refused."""
        self.stopping = False
        """True from the first signal on: a shutdown follows. Requests are still accepted until ``draining``."""
        self.unread = 0
        """The number of responses that a shutdown has abandoned because their clients had stopped reading."""
        self.handled: set[InFlightRequest] = set()
        """The requests whose MCP handler runs. In a session, it continues after its client has left."""
        self.watch_timer = SharedTimer(WATCH_SECONDS)
        """For calls that are not answered at once: their clients are watched."""
        self._open: dict[InFlightRequest, None] = {}
        self._calls: set[InFlightRequest] = set()
        self._asking: set[InFlightRequest] = set()
        self._changed = asyncio.Event()

    def open(
        self, name: str | RequestName, kind: Kind = Kind.CALL, connection: Connection | None = None
    ) -> InFlightRequest:
        """A new request, which is in flight until its ``close``."""
        request = InFlightRequest(self, name, kind, connection)
        self._open[request] = None
        if kind is Kind.CALL:
            self._calls.add(request)
        return request

    def update(self, request: InFlightRequest) -> None:
        """Its kind has changed from a call to a stream."""
        self._calls.discard(request)
        self._asking.discard(request)
        self.changed()

    def add_asking(self, request: InFlightRequest) -> None:
        """Its handler may ask the client something."""
        if request in self._calls:
            self._asking.add(request)

    def close(self, request: InFlightRequest) -> None:
        self._open.pop(request, None)
        self.update(request)

    def changed(self) -> None:
        """Wake whoever waits."""
        self._changed.set()

    def accept_again(self) -> None:
        """Forget the last shutdown, which the event loop has survived."""
        self.draining = False
        self.unread = 0

    @property
    def names(self) -> list[str]:
        """The names of the requests in flight."""
        return [request.name for request in self._open]

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def streams(self) -> list[InFlightRequest]:
        return [request for request in list(self._open) if request.kind is not Kind.CALL]

    @property
    def handled_calls(self) -> int:
        """The number of calls whose MCP handler runs. Safe to read from any thread."""
        return sum(request.kind is Kind.CALL for request in list(self.handled))

    @property
    def running(self) -> set[InFlightRequest]:
        """The requests in flight, and those whose handler continues after the client has left."""
        return self._open.keys() | self.handled

    async def questions_answered(self) -> None:
        """Return once no call in flight can ask its client anything over HTTP."""
        await self._until(lambda: not self._asking)

    async def calls_answered(self) -> None:
        """Return once no call is in flight."""
        await self._until(lambda: not self._calls)

    async def all_closed(self) -> None:
        """Return once nothing is in flight."""
        await self._until(lambda: not self._open)

    async def all_ended(self) -> None:
        """Return once nothing is in flight, and no handler runs for a client that has left."""
        await self._until(lambda: not self._open and not self.handled)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()


def listed(names: list[str], limit: int = 10) -> str:
    """The names in one line, as an error lists them."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
