"""What Daphne needs and ASGI has no message for.

Daphne is recognised, never imported: where it does not run the loop, nobody needs it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

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
