"""Starting and closing handlers where no ``Server`` does it: with the ASGI lifespan, or with the first request."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from django.conf import settings

from mcp_serving import conf
from mcp_serving.errors import AccessNotStated
from mcp_serving.garbage import imports_frozen
from mcp_serving.runtime import Runtime, end_subscriptions, finish_records, runtimes
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.drain import cancel_remaining, drain, drain_after_delay
from mcp_serving.shutdown.in_flight import listed
from mcp_serving.web_servers import daphne, hypercorn, os_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.urls import URLPattern
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.types import Receive, Send

    from mcp_serving.rate_limits.rate import Rate

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Seconds that closing may take where no ``Server`` sets a deadline."""


REOPEN_SECONDS = 5.0
"""Seconds after a drain until requests are accepted again, if the event loop still runs. By then its server is gone."""


class Handler(Protocol):
    """A ``StreamableHTTPHandler``."""

    paths: list[str]
    routes: list[URLPattern]
    options: Mapping[str, Any]
    rate: Rate | None

    @property
    def server(self) -> LowLevelServer[Any]: ...

    @property
    def place(self) -> str: ...

    @property
    def access_problem(self) -> str | None: ...

    async def start(self) -> object: ...


_handlers: WeakKeyDictionary[Handler, None] = WeakKeyDictionary()
"""In the order in which they were made."""
_loops_with_shutdown: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops in which somebody drains the requests in flight at the end."""
_loops_with_lifespan: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
"""The event loops in which the ASGI lifespan closes the handlers at the end."""
_drains: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""The number of drains that have begun in an event loop."""


def register(handler: Handler) -> None:
    _handlers[handler] = None


def handlers() -> list[Handler]:
    """All handlers that were made and still exist."""
    return list(_handlers)


def handlers_of(server: LowLevelServer[Any]) -> list[Handler]:
    """The handlers that were made for this server and still exist."""
    return [handler for handler in handlers() if handler.server is server]


def must_state_access() -> None:
    """Check that no handler would refuse every request.

    Raises:
        AccessNotStated: ``DEBUG`` is off, and a handler does not say who may call.
    """
    problems = [handler.access_problem for handler in handlers() if handler.access_problem]
    if problems and not settings.DEBUG:
        raise AccessNotStated(f"DEBUG is off. {problems[0]}")


async def start(server: LowLevelServer[Any]) -> LowLevelServer[Any]:
    """Enter the server's lifespan and start each of its handlers.

    Returns:
        the server for another transport to serve.

    Raises:
        Exception: whatever the lifespan raised while it was entered.
    """
    for handler in handlers_of(server):
        await handler.start()
    return await Runtime.of(server).open()


async def serve_lifespan(server: LowLevelServer[Any], receive: Receive, send: Send) -> None:
    """The ASGI lifespan: at startup, start the handlers of a server; at shutdown, close all handlers."""
    await receive()
    loop = asyncio.get_running_loop()
    _loops_with_lifespan.add(loop)
    if number := _drains.get(loop, 0):
        _accept_again(number)
    try:
        await start(server)
    except Exception as error:
        logger.exception("The MCP server could not be started.")
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    await send({"type": "lifespan.startup.complete"})
    try:
        with imports_frozen():
            await receive()
    finally:
        await close()
    await send({"type": "lifespan.shutdown.complete"})


def leave_shutdown_to_server() -> None:
    """In this event loop, a ``Server`` drains the requests in flight and closes the handlers."""
    _loops_with_shutdown.add(asyncio.get_running_loop())


def install_shutdown_hook() -> None:
    """With the first request in an event loop: drain the requests in flight when its web server stops, and close."""
    loop = asyncio.get_running_loop()
    if loop in _loops_with_shutdown:
        return
    _loops_with_shutdown.add(loop)
    if daphne.runs(loop):
        daphne.warn_of_missing_protections()
        daphne.close_with_reactor(loop, _close_for_good, CLOSE_SECONDS)
        return
    drain_here = partial(drain_on_signal, closes=loop not in _loops_with_lifespan)
    if not hypercorn.run_when_it_stops(drain_here):
        os_signals.run_before_the_server_stops(drain_here)


async def drain_on_signal(*, closes: bool) -> None:
    """Finish the calls and end the streams. A web server would wait for an open stream for ever, or cut it."""
    loop = asyncio.get_running_loop()
    number = _drains[loop] = _drains.get(loop, 0) + 1
    in_flights = [runtime.in_flight for runtime in runtimes()]
    seconds = conf.configuration().shutdown_timeout
    deadline = Deadline(seconds)
    with deadline.scope():
        await drain(*in_flights, end_subscriptions=end_subscriptions)
    await drain_after_delay(deadline, *in_flights, end_subscriptions=end_subscriptions)
    if unfinished := [name for in_flight in in_flights for name in in_flight.names]:
        logger.error(
            "The shutdown's deadline of %g seconds passed with %d still running, now cancelled: %s. See "
            "MCP_SERVING['SHUTDOWN_TIMEOUT'].",
            seconds,
            len(unfinished),
            listed(unfinished),
        )
    await cancel_remaining(Deadline(CLOSE_SECONDS), *in_flights)
    if closes:
        await close()
    loop.call_later(REOPEN_SECONDS, _accept_again, number)


def _accept_again(number: int) -> None:
    """Accept requests after a drain, unless a later drain has begun: another web server may run in the event loop."""
    loop = asyncio.get_running_loop()
    if _drains.get(loop, 0) != number:
        return
    _loops_with_shutdown.discard(loop)
    for runtime in runtimes():
        runtime.in_flight.accept_again()


async def _close_for_good() -> None:
    """Daphne accepts requests until its reactor has stopped. Such a request must not start again what was closed."""
    for runtime in runtimes():
        runtime.in_flight.draining = True
    await close()


async def close() -> None:
    """Close every runtime of the running event loop. An error is logged and does not stop the rest."""
    deadline = Deadline(CLOSE_SECONDS)
    results = await asyncio.gather(*(runtime.close(deadline) for runtime in runtimes()), return_exceptions=True)
    await finish_records(deadline)
    for error in results:
        if isinstance(error, Exception):
            logger.error("The lifespan of the MCP server failed while it was left.", exc_info=error)
