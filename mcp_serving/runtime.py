"""The lifetimes that everything shares that serves one MCP server in one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from mcp_serving import call_records, current_request, instruments, sdk
from mcp_serving.call_isolation import isolate_call, isolate_request
from mcp_serving.call_records import RunningCalls
from mcp_serving.lifespan import LifespanTask, is_being_cancelled
from mcp_serving.logs import install_filter, request_name
from mcp_serving.notifications.publish import local_buses
from mcp_serving.notifications.receive import receive_from_other_processes
from mcp_serving.rate_limits import storage
from mcp_serving.record_queue import flush_queues
from mcp_serving.security.bearer_tokens import remaining_lifetime
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import InFlightRequests, Kind
from mcp_serving.signals import Outcome

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.server.session import ServerSession

    from mcp_serving.fair_threads import FairThreads

logger = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_SECONDS = 5.0
"""Seconds that the services may take to stop after their lifespan has ended by itself."""


class Runtime:
    """One SDK server in one event loop: its lifespan, its requests in flight, and its services.

    A service runs within the lifespan: a session manager, or the receiver of notifications. Everything that serves the
    server calls ``Runtime.of`` and shares the same runtime.
    """

    def __init__(self, server: LowLevelServer[Any]) -> None:
        install_filter()
        self.server = server
        self.in_flight = InFlightRequests()
        self.calls = RunningCalls(server)
        self.on_lifespan_ended: Callable[[str], None] | None = None
        """A ``Server`` sets it: called with the reason when the lifespan has ended by itself."""
        self._lifespan_error: BaseException | None = None
        self._lifespan: LifespanTask[Any] = LifespanTask(
            "lifespan of the MCP server", lambda: server.lifespan(server), self._lifespan_ended
        )
        self._services: dict[Hashable, LifespanTask[Any]] = {}
        self._stopping_services: asyncio.Future[None] | None = None

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
        """Enter the server's lifespan, unless it is entered already.

        Returns:
            the server for a transport to serve.

        Raises:
            Exception: whatever the lifespan raised while it was entered.
        """
        state = await self._lifespan.open()
        if local_buses.exist:
            await self.start_service(
                receive_from_other_processes, receive_from_other_processes, "notifications receiver"
            )
        if not storage.uses_memory():
            await self.start_service(storage, storage.closed_afterwards, "rate limits")
        view = sdk.joined(self.server, state, self._handle)
        for make in instruments.middleware:
            sdk.add_within_span(view, make(self.server))
        return view

    @property
    def threads(self) -> FairThreads | None:
        """The threads in which sync functions of the server run; None for a server of the SDK's own class."""
        server: Any = sdk.outer(self.server)
        return getattr(server, "threads", None)

    async def start_service(
        self, key: Hashable, manager: Callable[[], AbstractAsyncContextManager[T]], name: str = "session manager"
    ) -> T:
        """Enter a service, once for each key, and return its value; see ``LifespanTask.open``."""
        service = self._services.get(key)
        if service is None:
            service = self._services[key] = LifespanTask(name, manager)
        value: T = await service.open()
        return value

    def running_service(self, key: Hashable) -> Any | None:
        """The value of a service while it runs; None while it does not."""
        service = self._services.get(key)
        return service.value if service is not None else None

    def end_subscriptions(self) -> None:
        """End the ``subscriptions/listen`` streams, each with its result."""
        if (handler := sdk.listen_handler(self.server)) is not None:
            handler.close()

    async def close(self, deadline: Deadline) -> None:
        """Stop the services, then leave the lifespan. A new request may start them again.

        Raises:
            Exception: an exception of the lifespan, while it was left or when it ended by itself.
        """
        if self._stopping_services is not None:
            await self._stopping_services
        await self.stop_services(deadline, share=0.5)
        await self.leave_lifespan(deadline)

    async def stop_services(self, deadline: Deadline, share: float) -> None:
        """Stop the services within a share of the deadline, so that the user's own cleanup has time, too.

        Session managers wait for threads, which cannot be cancelled.
        """
        services = [self._services.pop(key) for key in list(self._services)]
        stopped = (service.close(deadline, share) for service in services)
        for error in await asyncio.gather(*stopped, return_exceptions=True):
            if isinstance(error, Exception):
                logger.error("The session manager failed while it was left.", exc_info=error)

    async def leave_lifespan(self, deadline: Deadline) -> bool:
        """Leave the lifespan; False if the deadline interrupted that.

        Raises:
            Exception: an exception of the lifespan, while it was left or when it ended by itself.
        """
        error, self._lifespan_error = self._lifespan_error, None
        in_time = await self._lifespan.close(deadline)
        if error is not None:
            raise RuntimeError("The lifespan of the MCP server had ended by itself.") from error
        return in_time

    def _lifespan_ended(self, error: BaseException | None) -> None:
        """The lifespan has ended by itself: end the process, or start again with the next request."""
        if self.on_lifespan_ended is not None:
            self._lifespan_error = error
            self.on_lifespan_ended("the lifespan of the MCP server has ended by itself")
        elif not is_being_cancelled():
            self._stopping_services = asyncio.ensure_future(self.stop_services(Deadline(RESTART_SECONDS), share=1.0))

    def _handle(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Coroutine[Any, Any, HandlerResult]:
        """The outermost MCP middleware.

        It records calls, tells a shutdown which request runs, and lets the shutdown cancel the request.
        """
        if ctx.request_id is None:  # a notification: no client waits for an error, and the SDK logs it
            return isolate_call(call_next(ctx))
        if ctx.method in call_records.METHODS and call_records.are_wanted():
            return self.calls.record(ctx, call_next, self._answer)
        return self._answer(ctx, call_next)

    async def _answer(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        request = current_request.get().in_flight
        if request is None:
            return await isolate_request(self.server, ctx, call_next)
        request.name = request_name(ctx.method, ctx.params)
        if ctx.request is not None and _can_ask_client(ctx.session):
            request.may_ask_client()
        if ctx.method == sdk.LISTEN:
            kind = Kind.STREAM if sdk.listen_handler(self.server) is None else Kind.SUBSCRIPTION
            request.become_stream(kind, remaining_lifetime())
        with request.handled():
            return await isolate_request(self.server, ctx, call_next)
        current_request.note_outcome(Outcome.CUT if request.draining else Outcome.CANCELLED)
        raise MCPError(CONNECTION_CLOSED, "The server is shutting down; the call was cancelled.")


_runtimes: dict[asyncio.AbstractEventLoop, dict[Any, Runtime]] = {}


def _forget_closed_loops() -> None:
    # Weak references would keep them: the events and futures of a runtime refer to its loop.
    for loop in list(_runtimes):  # a copy, because other threads add their loops
        if loop.is_closed():
            _runtimes.pop(loop, None)


def runtimes_of_process() -> list[Runtime]:
    """Every runtime of every event loop. Safe to call from any thread."""
    return [runtime for of_loop in list(_runtimes.values()) for runtime in list(of_loop.values())]


def runtimes() -> list[Runtime]:
    """Every runtime of the running event loop."""
    return list(_runtimes.get(asyncio.get_running_loop(), {}).values())


async def finish_records(deadline: Deadline) -> None:
    """At the end of a shutdown, record the calls that it has abandoned, and wait until all records are delivered."""
    for runtime in runtimes():
        runtime.calls.cut()
    await flush_queues(deadline.remaining)


def end_subscriptions() -> None:
    """Ask the ``subscriptions/listen`` streams of every runtime of the running event loop to end."""
    for runtime in runtimes():
        runtime.end_subscriptions()


def _can_ask_client(session: ServerSession) -> bool:
    """Whether a handler can send its client a request that the client has declared to answer."""
    capabilities = session.client_capabilities
    if not session.can_send_request or capabilities is None:
        return False
    return any((capabilities.elicitation, capabilities.sampling, capabilities.roots))
