"""Starting and closing handlers where no ``Server`` does it: ASGI lifespan, plain ``daphne``, neither."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from mcp_serving import conf
from mcp_serving.runtime import Runtime, end_subscriptions, runtimes
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.drain import cancel_remaining, drain
from mcp_serving.shutdown.in_flight import listed
from mcp_serving.web_servers import daphne, hypercorn, os_signals

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer

    from mcp_serving.asgi.handler import StreamableHTTPHandler

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long closing may take where no ``Server`` gives a deadline."""

_handlers: WeakKeyDictionary[StreamableHTTPHandler, None] = WeakKeyDictionary()
"""In the order in which they were made."""
_seen_to: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_told: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def register(handler: StreamableHTTPHandler) -> None:
    _handlers[handler] = None


def handlers() -> list[StreamableHTTPHandler]:
    """All that were made and still exist."""
    return list(_handlers)


def handlers_of(server: LowLevelServer[Any]) -> list[StreamableHTTPHandler]:
    """The handlers that were made for this server and still exist."""
    return [handler for handler in handlers() if handler.server is server]


async def start(server: LowLevelServer[Any]) -> LowLevelServer[Any]:
    """Enter the server's lifespan and start each of its handlers; the server for a further transport to serve.

    Raises:
        Exception: whatever the lifespan raised while it was entered.
    """
    for handler in handlers_of(server):
        await handler.start()
    return await Runtime.of(server).open()


def leave_shutdown_to_server() -> None:
    """In this event loop, a ``Server`` drains and closes the handlers."""
    _seen_to.add(asyncio.get_running_loop())


def leave_closing_to_lifespan() -> None:
    """In this event loop, the web server speaks the ASGI lifespan: that closes the handlers."""
    _told.add(asyncio.get_running_loop())


def install_shutdown_hook() -> None:
    """With the first request in an event loop: have what is in flight drained when its web server stops, and closed."""
    loop = asyncio.get_running_loop()
    if loop in _seen_to:
        return
    _seen_to.add(loop)
    if daphne.runs(loop):
        daphne.close_with(loop, _close_for_good, CLOSE_SECONDS)
        return
    rest = partial(drain_on_signal, closes=loop not in _told)
    if not hypercorn.run_when_it_stops(rest):
        os_signals.run_before_the_server_hears(rest)


async def drain_on_signal(*, closes: bool) -> None:
    """What no other web server does for MCP: it would wait for a standing stream for ever, or be gone at once."""
    in_flights = [runtime.in_flight for runtime in runtimes()]
    seconds = conf.configuration().shutdown_timeout
    with Deadline(seconds).scope():
        await drain(*in_flights, end_subscriptions=end_subscriptions)
    if unfinished := [name for in_flight in in_flights for name in in_flight.names]:
        logger.error(
            "The shutdown's %g seconds have passed with %d still running, now cancelled: %s.",
            seconds,
            len(unfinished),
            listed(unfinished),
        )
    await cancel_remaining(Deadline(CLOSE_SECONDS), *in_flights)
    if closes:
        await close()


async def _close_for_good() -> None:
    """Daphne listens until its reactor has stopped: a request meanwhile must not start again what is closed."""
    for runtime in runtimes():
        runtime.in_flight.draining = True
    await close()


async def close() -> None:
    """Close every runtime of the running event loop; what fails is logged and does not stop the rest."""
    deadline = Deadline(CLOSE_SECONDS)
    closed = await asyncio.gather(*(runtime.close(deadline) for runtime in runtimes()), return_exceptions=True)
    for error in closed:
        if isinstance(error, Exception):
            logger.error("The lifespan of the MCP server failed while it was left.", exc_info=error)
