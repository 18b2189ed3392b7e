"""``receive`` of one request: a shutdown can end it, and it notices that the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import anyio

from mcp_serving.shutdown.in_flight import State

if TYPE_CHECKING:
    from starlette.types import Message, Receive

    from mcp_serving.shared_timer import SharedTimer
    from mcp_serving.shutdown.in_flight import InFlightRequest


class ClientMessages:
    """``receive`` of one request. When a shutdown ends the request, it says that the client has left."""

    __slots__ = ("_in_flight", "_receive", "_waiting")

    disconnected: ClassVar[Message]

    def __init__(self, receive: Receive, in_flight: InFlightRequest) -> None:
        self._receive = receive
        self._in_flight = in_flight
        self._waiting: anyio.CancelScope | None = None

    def end(self) -> bool:
        """Let a waiting application receive that its client has left; False if the application does not wait."""
        if self._waiting is None:
            return False
        self._waiting.cancel()
        return True

    async def _received_or_ended(self, receive: Receive) -> Message:
        if self._in_flight.state is not State.ENDED:
            try:
                with anyio.CancelScope() as self._waiting:
                    return await receive()
            finally:
                self._waiting = None
        return dict(self.disconnected)


class WebSocketMessages(ClientMessages):
    """``receive`` of a WebSocket connection."""

    __slots__ = ("has_begun",)

    disconnected: ClassVar[Message] = {"type": "websocket.disconnect", "code": 1001}

    def __init__(self, receive: Receive, in_flight: InFlightRequest) -> None:
        super().__init__(receive, in_flight)
        self.has_begun = False
        """Whether the application has received anything."""

    async def receive(self) -> Message:
        self.has_begun = True
        return await self._received_or_ended(self._receive)


class Watch(Enum):
    """Who would notice that the client of an HTTP request has left."""

    READER = auto()
    """The application reads the body."""
    NOBODY = auto()
    """The application has read the body."""
    TASK = auto()
    """A task waits, because the application does not."""
    APPLICATION = auto()
    """The application waits."""
    LEFT = auto()
    """The client has left, or has received the whole response: ASGI servers send the same message for both."""


class HTTPMessages(ClientMessages):
    """``receive`` of an HTTP request."""

    __slots__ = ("_context", "_on_left", "_task", "_watch_timer", "watch")

    disconnected: ClassVar[Message] = {"type": "http.disconnect"}

    def __init__(self, receive: Receive, in_flight: InFlightRequest, watch_timer: SharedTimer) -> None:
        super().__init__(receive, in_flight)
        self.watch = Watch.READER
        self._watch_timer = watch_timer
        self._on_left: Callable[[Watch], Awaitable[None]] | None = None
        self._context: Context | None = None
        self._task: asyncio.Task[None] | None = None

    def start_watching(self, on_left: Callable[[Watch], Awaitable[None]]) -> None:
        """When the client leaves, call ``on_left`` with the value that ``watch`` had before."""
        self._on_left = on_left

    def stop_watching(self) -> None:
        """Do not call ``on_left`` any more."""
        self._on_left = None
        if self._context is not None:
            self._context = None
            self._watch_timer.discard(self)
        if self._task is not None:
            self._task.cancel()
            # Its traceback refers to this object. Without this line, only the garbage collector could free the two.
            self._task = None

    async def receive(self) -> Message:
        if self.watch is Watch.LEFT:
            return dict(self.disconnected)
        if self.watch is Watch.READER:  # the ordinary request: nothing to end, and nothing to pay for it
            message = await self._receive()
        else:
            self.watch = Watch.APPLICATION
            receive = self._receive if self._task is None else partial(self._left, self._task)
            message = await self._received_or_ended(receive)
        if message["type"] == "http.disconnect":
            if self._in_flight.state is not State.ENDED:
                await self._leave()
        elif self.watch is Watch.READER and not message.get("more_body", False):
            self.watch = Watch.NOBODY
            if self._on_left is not None:
                self._context = copy_context()
                self._watch_timer.add(self)
        return message

    def on_time(self) -> None:
        """Start a task that notices when the client leaves, because the call is not answered yet."""
        if self._context is not None and self.watch is Watch.NOBODY:
            self.watch = Watch.TASK
            self._task = self._context.run(asyncio.ensure_future, self._until_client_leaves())

    async def _until_client_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        await self._leave()

    async def _left(self, task: asyncio.Task[None]) -> Message:
        await asyncio.wait({task})
        return dict(self.disconnected)

    async def _leave(self) -> None:
        watch, self.watch = self.watch, Watch.LEFT
        if watch is not Watch.LEFT and self._on_left is not None:
            await self._on_left(watch)
