"""What everything that serves one MCP server in one event loop shares: lifespan, ledger, what to close."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR
from pydantic import ValidationError

from mcp_serving import logs, sdk
from mcp_serving.deadline import Deadline
from mcp_serving.events import here
from mcp_serving.hearing import events_of_other_processes
from mcp_serving.ledger import CANCELLED_SECONDS, Ledger, current_exchange

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.server.session import ServerSession

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_SECONDS = 5.0
"""How long session managers may take to be left when their lifespan has ended by itself."""


class Held(Generic[T]):
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
        if not _is_being_cancelled():
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


def _is_being_cancelled() -> bool:
    """Whether the running task is, as all are when their event loop ends."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Runtime:
    """One SDK server in one event loop: its lifespan, its ledger, and what was started on top of it.

    Everything that serves the server joins its runtime with ``Runtime.of`` and shares what it finds there.
    """

    def __init__(self, server: LowLevelServer[Any]) -> None:
        logs.keep_lines_whole()
        self.server = server
        self.ledger = Ledger()
        self.on_broken: Callable[[str], None] | None = None
        """Is told, by a ``Server`` that wants to know, when the lifespan has ended by itself."""
        self._broken: BaseException | None = None
        self._lifespan: Held[Any] = Held(
            "lifespan of the MCP server", lambda: server.lifespan(server), self._lifespan_broke
        )
        self._on_top: dict[Hashable, Held[Any]] = {}
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
        if here.has_buses:
            await self.open_on_top(events_of_other_processes, events_of_other_processes, "hearing of events")
        return sdk.joined(self.server, state, self._handle)

    async def open_on_top(
        self, key: Hashable, manager: Callable[[], AbstractAsyncContextManager[T]], name: str = "session manager"
    ) -> T:
        """Enter what lives inside the lifespan, once for each key, and return its value; see ``Held.open``."""
        held = self._on_top.get(key)
        if held is None:
            held = self._on_top[key] = Held(name, manager)
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
        elif not _is_being_cancelled():
            # Nobody ends the process: what stands on the lifespan ends too, and the next request starts it all again.
            self._leaving_on_top = asyncio.ensure_future(self.close_on_top(Deadline(RESTART_SECONDS), share=1.0))

    async def _handle(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """The outermost MCP middleware: tells the ledger what is running, and lets it be cancelled."""
        if ctx.request_id is None:  # a notification: nobody is told of an exception, and the SDK logs it
            return await _contained(call_next(ctx))
        exchange = current_exchange.get()
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
            return await _contained(call_next(ctx))
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


async def _contained(call: Awaitable[T]) -> T:
    """Let a handler end its own call only, whatever it raises.

    An exception that is no ``Exception``, ``sys.exit()`` among them, would end the SDK's loop or session
    manager, and with it every other call. So would a ``CancelledError`` that nobody's cancellation caused:
    awaiting a task of its own that was cancelled is enough.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if anyio.current_effective_deadline() == -math.inf:  # somebody means it
            raise
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        raise RuntimeError("The handler was cancelled from within.") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"The handler raised {type(error).__name__}, which is no Exception.") from error


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


async def drain(*ledgers: Ledger) -> None:
    """The middle of a shutdown: take nothing new, let the calls in flight finish, then end the streams."""
    for ledger in ledgers:
        ledger.draining = True
    for ledger in ledgers:
        await ledger.calls_answered()
    for runtime in runtimes():
        runtime.end_subscriptions()
    for ledger in ledgers:
        for stream in ledger.streams:
            stream.end()
    for ledger in ledgers:
        await ledger.empty()


async def cancel_what_is_left(deadline: Deadline, *ledgers: Ledger) -> None:
    """Past the time of a shutdown: cancel by the mildest means, and answer in place of what that does not end."""
    for ledger in ledgers:
        for exchange in ledger.left:
            exchange.cancel()
    with deadline.scope(share=0.2):
        for ledger in ledgers:
            await ledger.settled()
    # Side by side: each may have to wait for a client that does not read.
    await asyncio.gather(*(exchange.abandon() for ledger in ledgers for exchange in ledger.left))


def _can_ask(session: ServerSession) -> bool:
    """Whether a handler may send its client a request, and the client has said that it answers some."""
    able = session.client_capabilities
    if not session.can_send_request or able is None:
        return False
    return any(ability is not None for ability in (able.elicitation, able.sampling, able.roots))


def describe(method: str, params: Any) -> str:
    """A request as a log line names it: its method, and the tool, prompt or resource it is about."""
    about = ""
    if isinstance(params, dict):
        about = params.get("name") or params.get("uri") or ""
    method = logs.escaped(method[:100])
    return f"{method} {str(about)[:100]!r}" if about else method
