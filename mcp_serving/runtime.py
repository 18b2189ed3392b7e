"""What everything that serves one MCP server in one event loop shares: lifespan, in_flight, what to close."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR
from pydantic import ValidationError

from mcp_serving import current_request, sdk
from mcp_serving.call_isolation import isolate_call
from mcp_serving.lifespan import LifespanTask, is_being_cancelled
from mcp_serving.logs import describe, install_filter
from mcp_serving.notifications.publish import local_buses
from mcp_serving.notifications.receive import receive_from_other_processes
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import InFlightRequests

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.server.session import ServerSession

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_SECONDS = 5.0
"""How long session managers may take to be left when their lifespan has ended by itself."""


class Runtime:
    """One SDK server in one event loop: its lifespan, its in_flight, and what was started on top of it.

    Everything that serves the server joins its runtime with ``Runtime.of`` and shares what it finds there.
    """

    def __init__(self, server: LowLevelServer[Any]) -> None:
        install_filter()
        self.server = server
        self.in_flight = InFlightRequests()
        self.on_broken: Callable[[str], None] | None = None
        """Is told, by a ``Server`` that wants to know, when the lifespan has ended by itself."""
        self._broken: BaseException | None = None
        self._lifespan: LifespanTask[Any] = LifespanTask(
            "lifespan of the MCP server", lambda: server.lifespan(server), self._lifespan_broke
        )
        self._on_top: dict[Hashable, LifespanTask[Any]] = {}
        self._leaving_on_top: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, server: LowLevelServer[Any]) -> Runtime:
        """The runtime of ``server`` in the running event loop."""
        runtimes = _runtimes.setdefault(asyncio.get_running_loop(), {})
        runtime = runtimes.get(server)
        if runtime is None:
            _forget_closed_loops()
            runtime = runtimes[server] = cls(server)
        return runtime

    async def open(self) -> LowLevelServer[Any]:
        """Enter the server's lifespan, if nobody did so yet; the server for a transport to serve.

        Raises:
            Exception: whatever the lifespan raised while it was entered.
        """
        state = await self._lifespan.open()
        if local_buses.exist:
            await self.open_on_top(receive_from_other_processes, receive_from_other_processes, "notifications receiver")
        return sdk.joined(self.server, state, self._handle)

    async def open_on_top(
        self, key: Hashable, manager: Callable[[], AbstractAsyncContextManager[T]], name: str = "session manager"
    ) -> T:
        """Enter what lives inside the lifespan, once for each key, and return its value; see ``LifespanTask.open``."""
        held = self._on_top.get(key)
        if held is None:
            held = self._on_top[key] = LifespanTask(name, manager)
        value: T = await held.open()
        return value

    def opened_on_top(self, key: Hashable) -> Any | None:
        """What ``open_on_top`` returned for this key, while it is open."""
        held = self._on_top.get(key)
        return held.value if held is not None else None

    def end_subscriptions(self) -> None:
        """Ask the ``subscriptions/listen`` streams to end, each with its result."""
        if (handler := sdk.listen_handler(self.server)) is not None:
            handler.close()

    async def close(self, deadline: Deadline) -> bool:
        """Leave the session managers, then the lifespan; False if leaving the lifespan was cut short.

        A new request may open all of it again.

        Raises:
            Exception: what the lifespan raised while it was left, or before, when it ended by itself.
        """
        if self._leaving_on_top is not None:
            await self._leaving_on_top
        await self.close_on_top(deadline, share=0.5)
        return await self.close_lifespan(deadline)

    async def close_on_top(self, deadline: Deadline, share: float) -> None:
        """Leave the session managers, and what else is on top of the lifespan.

        They wait for threads that nobody can cancel: they get a share of the time, so that the user's own
        cleanup always has its turn.
        """
        on_top = [self._on_top.pop(key) for key in list(self._on_top)]
        for error in await asyncio.gather(*(held.close(deadline, share) for held in on_top), return_exceptions=True):
            if isinstance(error, Exception):
                logger.error("The session manager failed while it was left.", exc_info=error)

    async def close_lifespan(self, deadline: Deadline) -> bool:
        """Leave the lifespan; False if that was cut short.

        Raises:
            Exception: what it raised while it was left, or before, when it ended by itself.
        """
        broken, self._broken = self._broken, None
        in_time = await self._lifespan.close(deadline)
        if broken is not None:
            raise RuntimeError("The lifespan of the MCP server had ended by itself.") from broken
        return in_time

    def _lifespan_broke(self, error: BaseException | None) -> None:
        if self.on_broken is not None:
            self._broken = error
            self.on_broken("the lifespan of the MCP server has ended by itself")
        elif not is_being_cancelled():
            # Nobody ends the process: what stands on the lifespan ends too, and the next request starts it all again.
            self._leaving_on_top = asyncio.ensure_future(self.close_on_top(Deadline(RESTART_SECONDS), share=1.0))

    async def _handle(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """The outermost MCP middleware: tells the in_flight what is running, and lets it be cancelled."""
        if ctx.request_id is None:  # a notification: nobody is told of an exception, and the SDK logs it
            return await isolate_call(call_next(ctx))
        exchange = current_request.get().in_flight
        if exchange is None:
            return await self._answered(ctx, call_next)
        exchange.what = describe(ctx.method, ctx.params)
        exchange.may_ask = ctx.request is not None and _can_ask(ctx.session)
        if ctx.method == sdk.LISTEN:
            exchange.stand(ends_itself=sdk.listen_handler(self.server) is not None)
        with exchange.handled():
            return await self._answered(ctx, call_next)
        raise MCPError(CONNECTION_CLOSED, "The server is shutting down; the call was cancelled.")

    async def _answered(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Let a client read what was meant for it, an ``MCPError``, and nothing of any other exception.

        The SDK sends the text of one to a client of up to 2025-11-25, and logs no ``ValidationError``, which it
        takes for one of the request's parameters wherever it comes from.
        """
        try:
            return await isolate_call(call_next(ctx))
        except MCPError:
            raise
        except Exception as error:
            if isinstance(error, ValidationError) and not sdk.takes(self.server, ctx):
                raise
            logger.exception("%s failed.", describe(ctx.method, ctx.params))
            raise MCPError(INTERNAL_ERROR, "Internal server error") from error


_runtimes: dict[asyncio.AbstractEventLoop, dict[Any, Runtime]] = {}


def _forget_closed_loops() -> None:
    # Weak references would not do it: the events and futures of a runtime refer to its loop.
    for loop in list(_runtimes):  # a copy: loops of other threads join meanwhile
        if loop.is_closed():
            _runtimes.pop(loop, None)


def runtimes() -> list[Runtime]:
    """Every runtime of the running event loop."""
    return list(_runtimes.get(asyncio.get_running_loop(), {}).values())


def end_subscriptions() -> None:
    """Ask the ``subscriptions/listen`` streams of every runtime of the running event loop to end."""
    for runtime in runtimes():
        runtime.end_subscriptions()


@contextmanager
def imports_frozen() -> Iterator[None]:
    """While a process serves: its garbage collector does not look through what was imported before.

    A full collection, in which every call waits, would take a tenth of a second for Django and the SDK, again and
    again, to find nothing.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _can_ask(session: ServerSession) -> bool:
    """Whether a handler may send its client a request, and the client has said that it answers some."""
    able = session.client_capabilities
    if not session.can_send_request or able is None:
        return False
    return any(ability is not None for ability in (able.elicitation, able.sampling, able.roots))
