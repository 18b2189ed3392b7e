"""What Daphne needs and ASGI has no message for.

Daphne is recognised, never imported: where it does not run the loop, nobody needs it.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from mcp_serving.shutdown.in_flight import InFlightRequest

STALLED_SECONDS = 1.0
"""A client that reads nothing of its answer for so long is not waited for in a shutdown."""

WRITE_TIMEOUT = 60.0
"""Seconds, under a Daphne server that does not say it itself, by an attribute ``write_timeout``."""


def abort(send: Callable[..., Awaitable[None]]) -> None:
    """Break off a response that cannot be completed, so that its client does not take it for a whole one.

    With a reset: to an HTTP/1.0 client (nginx in front, by default) an orderly close is the end of the body.
    """
    _, protocol = _ends_of(send)
    if protocol is not None and protocol.transport is not None:
        protocol.transport.abortConnection()


def go_away(send: Callable[..., Awaitable[None]]) -> None:
    """Close a WebSocket with 1001; ``websocket.close`` cannot, Autobahn keeps that code for itself."""
    _, protocol = _ends_of(send)
    if protocol is not None and protocol.state == protocol.STATE_OPEN:
        protocol.sendCloseFrame(code=1001)


def let_go(send: Callable[..., Awaitable[None]]) -> None:
    """Take an application whose client has left out of Daphne's books.

    Daphne would log a warning about it ten seconds later, and cancel it: a sync tool, in a thread that
    nobody can cancel, may well take that long.
    """
    server, protocol = _ends_of(send)
    details = server.connections.get(protocol) if server is not None else None
    if details is not None:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        # Not removed: at its shutdown, Daphne takes for granted that there is one.
        details["application_instance"] = done


class BackPressure:
    """Lets who sends wait while the client does not read, which Daphne's ``send`` does not.

    For Twisted it is a push producer: it is told when the connection's buffer is full, and when it is empty again.
    """

    PIECE = 2**16
    """Bytes that are sent at once: with more, Twisted holds its buffer to be full."""

    TICK = 0.5
    """Seconds between two looks at a client that does not read."""

    def __init__(
        self, send: Callable[..., Awaitable[None]], server: Any, request: Any, exchange: InFlightRequest
    ) -> None:
        seconds = getattr(server, "write_timeout", WRITE_TIMEOUT)
        self._write_timeout: float = math.inf if seconds is None else seconds
        self._send = send
        self._request = request
        self._exchange = exchange
        self._room = asyncio.Event()
        self._room.set()
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    def of(cls, send: Callable[..., Awaitable[None]], exchange: InFlightRequest) -> BackPressure | None:
        """For an HTTP request's ``send`` that Daphne has made; None for any other, whose server has its own."""
        server, protocol = _ends_of(send)
        return None if server is None else cls(send, server, protocol, exchange)

    async def send(self, message: MutableMapping[str, Any]) -> bool:
        """Send a part of a body that has more to come, and wait until the client has taken it.

        Returns:
            False if the client has stopped reading; True also if it has left.
        """
        async with self._one_at_a_time:
            if not self._is_over and self._request.producer is None:
                self._request.registerProducer(self, True)
            await self._send(message)
            return self._room.is_set() or await self._is_taken()

    async def _is_taken(self) -> bool:
        progress, since = self._progress(), time.monotonic()
        while not self._is_over:
            with anyio.move_on_after(self.TICK):
                await self._room.wait()
                return True
            if progress != (progress := self._progress()):
                since = time.monotonic()
            elif time.monotonic() - since >= self._patience:
                return False
        return True

    @property
    def _patience(self) -> float:
        return min(self._write_timeout, STALLED_SECONDS) if self._exchange.draining else self._write_timeout

    def release(self) -> None:
        """Let who waits go on: the response is about to end."""
        self._room.set()
        if not self._is_over and self._request.producer is self:
            self._request.unregisterProducer()

    @property
    def _is_over(self) -> bool:
        return self._request.finished or self._request.channel is None

    def _progress(self) -> tuple[int, int] | None:
        return None if self._is_over else progress_of(self._request.channel.transport)

    # As Twisted calls it

    def pauseProducing(self) -> None:  # noqa: N802
        self._room.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self._room.set()

    def stopProducing(self) -> None:  # noqa: N802
        self._room.set()


def progress_of(transport: Any) -> tuple[int, int]:
    """What changes whenever the client has taken something of what a connection of Twisted's has in its buffer."""
    return transport.offset, len(transport.dataBuffer)


def _ends_of(send: Callable[..., Awaitable[None]]) -> tuple[Any, Any]:
    """Daphne's server and protocol object behind a ``send`` that it made; None for both behind any other."""
    daphne = sys.modules.get("daphne.server")
    if daphne is not None and isinstance(send, partial):
        server = getattr(send.func, "__self__", None)
        if isinstance(server, daphne.Server):
            return server, send.args[0]
    return None, None


def runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is the event loop that Daphne's module has installed."""
    daphne = sys.modules.get("daphne.server")
    return daphne is not None and daphne.twisted_loop is loop


def close_with(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
    """Run ``close`` in Daphne's loop when Daphne shuts down, of which ASGI does not tell: it speaks no lifespan.

    Args:
        loop: Daphne's event loop, which is running.
        close: may be called twice.
        seconds: how long it takes at the most.
    """
    _close_with_reactor(loop, close)
    if threading.current_thread() is not threading.main_thread():
        # Not a daemon: the interpreter waits for it, and before it for the main thread.
        threading.Thread(target=_close_with_main_thread, args=(loop, close, seconds), daemon=False).start()


def _close_with_reactor(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    from twisted.internet import reactor as installed_reactor
    from twisted.internet.defer import Deferred

    reactor: Any = installed_reactor
    reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromFuture(loop.create_task(close())))


def _close_with_main_thread(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]], seconds: float
) -> None:
    """Under ``runserver``, whose autoreload ends the main thread while the reactor runs on in another."""
    threading.main_thread().join()
    with suppress(RuntimeError, TimeoutError):  # the loop is closed, or hangs
        asyncio.run_coroutine_threadsafe(close(), loop).result(seconds)
