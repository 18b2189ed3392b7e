"""``Server``: the life of a process that serves one MCP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mcp_serving import current_request, garbage, sdk
from mcp_serving.conf import DEFAULT_SHUTDOWN_TIMEOUT, valid_shutdown_delay, valid_shutdown_timeout
from mcp_serving.errors import NoHTTPServer, ShutdownTimeout
from mcp_serving.runtime import Runtime, end_subscriptions, finish_records, runtimes
from mcp_serving.shutdown import os_signals
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.drain import cancel_remaining, drain, drain_after_delay, end_unawaited_tasks
from mcp_serving.shutdown.in_flight import listed
from mcp_serving.stdio.streams import StandardStreams
from mcp_serving.stdio.transport import StdioTransport
from mcp_serving.transport import Transport

if TYPE_CHECKING:
    import signal

    from daphne.server import Server as DaphneServer
    from django.contrib.auth.models import AbstractBaseUser
    from mcp.server.lowlevel.server import Server as LowLevelServer

    from mcp_serving.daphne.transport import DaphneTransport

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 1.0
"""Seconds that leaving the session managers and the lifespan may take after the deadline of the shutdown."""


class Server:
    """Serves one MCP server object over stdio, over a Daphne server, or over both.

    Args:
        mcp: an ``MCPServer`` or a low-level ``Server`` of the SDK.
        transport: ``Transport.STDIO``, ``Transport.HTTP`` or ``Transport.BOTH``, or its name.
        http_server: for http and both: a ``daphne.server.Server``, or a callable without arguments that returns one
            and is called once. It is served as given, except that signals and the shutdown are handled here.
        shutdown_timeout: seconds that the whole graceful shutdown may take.
        shutdown_delay: seconds of further serving after the first signal, for http and both. ``mcp_serving.health``
            reports meanwhile that the process is not ready. A second signal ends the delay.
        user: the Django user that ``get_user()`` returns over stdio; None for an anonymous user. Over HTTP it is the
            user of the request.

    Raises:
        InvalidServer: ``mcp`` is not a server of the SDK.
        InvalidTransport: ``transport`` is not stdio, http or both.
        InvalidShutdownTimeout: ``shutdown_timeout`` or ``shutdown_delay`` is negative, not finite or not a number.
        NoHTTPServer: ``transport`` needs an ``http_server``.

    Example:
        >>> Server(mcp, transport=Transport.BOTH, http_server=build_daphne).run()
    """

    def __init__(
        self,
        mcp: sdk.SDKServer,
        *,
        transport: Transport | str = Transport.STDIO,
        http_server: DaphneServer | Callable[[], DaphneServer] | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT,
        shutdown_delay: float = 0.0,
        user: AbstractBaseUser | None = None,
    ) -> None:
        self.mcp = mcp
        """The server of the SDK."""
        self.transport = Transport(transport)
        self.shutdown_timeout = valid_shutdown_timeout(shutdown_timeout)
        self._shutdown_delay = valid_shutdown_delay(shutdown_delay) if self.transport.uses_http else 0.0
        self._server: LowLevelServer[Any] = sdk.low_level(mcp)
        if self.transport.uses_http and http_server is None:
            raise NoHTTPServer(
                f"Transport {str(self.transport)!r} needs a Daphne server: give runmcp a port, such as 8000, or set "
                "MCP_SERVING['HTTP_SERVER'] to the callable that builds it; in Python, http_server=..."
            )
        self._http_server = http_server
        self._user = user
        self._announce: Callable[[str], None] = logger.info
        self._has_run = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stdio: StdioTransport | None = None
        self._daphne: DaphneTransport | None = None
        self._serving: Runtime | None = None
        self._stop_requested = asyncio.Event()
        self._stop_reason = ""
        self._is_shutting_down = False
        self._shutdown_deadline: Deadline

    def run(self, *, announce: Callable[[str], None] | None = None, streams: StandardStreams | None = None) -> None:
        """Serve until a signal, ``stop()`` or the end of a transport, then shut down gracefully.

        Blocks, and can be called once. While it runs in the main thread, it handles SIGINT, SIGTERM and SIGHUP. A
        second signal cuts the shutdown short.

        Args:
            announce: gets one line when a transport is ready, and one line when the shutdown begins. By default they
                are logged.
            streams: standard input and output, if the caller has claimed them already.

        Raises:
            InvalidHTTPServer, NoApplication, InvalidEndpoint: the Daphne server cannot be used.
            AccessNotStated: ``DEBUG`` is off, and a handler does not say who may call.
            ListenError: the Daphne server cannot listen.
            ShutdownTimeout: the deadline passed. The message names the requests that were still running.
            RuntimeError: it has been run before.
            Exception: an exception of the server's lifespan.
        """
        if self._has_run:
            raise RuntimeError("This Server has been run already: build a new one.")
        self._has_run = True
        if announce is not None:
            self._announce = announce
        with self._standard_streams(streams) as streams:
            if self.transport.uses_http:
                self._run_in_loop_of_daphne(streams)
            else:
                self._run_in_new_loop(streams)

    def stop(self) -> None:
        """Start the graceful shutdown. It is safe to call from any thread and from a signal handler.

        Returns at once. Before ``run()``, it makes ``run()`` return immediately. After ``run()``, it does nothing.
        """
        self._request_stop("stop() was called")

    # The event loop

    @contextmanager
    def _standard_streams(self, claimed: StandardStreams | None) -> Iterator[StandardStreams | None]:
        """Standard input and output for stdio. Streams that are claimed here are released at the end."""
        if claimed is not None or not self.transport.uses_stdio:
            yield claimed
            return
        streams = StandardStreams()
        try:
            yield streams
        finally:
            streams.release()

    def _run_in_new_loop(self, streams: StandardStreams | None) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            with os_signals.handled_by(loop, self._on_signal):
                loop.run_until_complete(self._serve(streams))
        finally:
            loop.run_until_complete(end_unawaited_tasks())
            asyncio.set_event_loop(None)
            if not asyncio.all_tasks(loop):  # a task that could not be cancelled keeps its loop
                loop.close()

    def _run_in_loop_of_daphne(self, streams: StandardStreams | None) -> None:
        from mcp_serving.asgi import lifecycle
        from mcp_serving.asgi.hidden_mounts import warn_of_hidden_mounts
        from mcp_serving.daphne import transport

        http_server = transport.build(self._http_server)
        lifecycle.must_state_access()
        warn_of_hidden_mounts(http_server.application, lifecycle.handlers_of(self._server))
        self._daphne = daphne = transport.DaphneTransport(http_server)
        loop = transport.loop
        asyncio.set_event_loop(loop)
        with os_signals.handled_by(loop, self._on_signal):
            serving = loop.create_task(self._serve(streams))
            either: set[asyncio.Future[Any]] = {serving, daphne.started}
            loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
            if daphne.started.done():
                serving.add_done_callback(lambda _: daphne.stop())
                try:
                    daphne.run()
                finally:
                    # If somebody else has stopped the reactor, the shutdown is graceful all the same.
                    self._request_stop("the Daphne server was stopped")
                    loop.run_until_complete(asyncio.wait({serving}))
            loop.run_until_complete(end_unawaited_tasks())
        serving.result()

    # Serving: start, wait, shut down

    async def _serve(self, streams: StandardStreams | None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stop_reason:
            return
        runtime = Runtime.of(self._server)
        runtime.on_lifespan_ended = self._request_stop
        if streams is not None:
            self._stdio = StdioTransport(streams, runtime.in_flight, self._request_stop)
        try:
            await self._unless_stopped(self._start(runtime))
            with garbage.imports_frozen(), garbage.rare_collections():
                await self._stop_requested.wait()
        finally:
            await self._shut_down(runtime)

    async def _start(self, runtime: Runtime) -> None:
        """Enter the lifespan, then accept clients."""
        served = await self._enter_lifespan(runtime)
        identity = await self._describe_server()
        if self._daphne is not None:
            addresses = await self._daphne.listen(runtime.in_flight)
            self._serving = runtime  # before a process manager can read that it may send a signal
            self._announce(f"{identity} is {self._where(addresses)}. Stop it with Ctrl-C or SIGTERM.")
        if self._stdio is not None:
            # For the task that serves stdio: it begins with a copy of this context.
            current_request.update(local_user=self._user)
            self._stdio.start(served)
            hint = " This is a terminal: an MCP client is expected there." if self._stdio.is_terminal else ""
            self._announce(
                f"{identity} is on standard input and output.{hint} Stop it with Ctrl-C or by closing its input."
            )

    async def _enter_lifespan(self, runtime: Runtime) -> LowLevelServer[Any]:
        if not self.transport.uses_http:
            return await runtime.open()
        from mcp_serving.asgi import lifecycle

        lifecycle.leave_shutdown_to_server()
        return await lifecycle.start(self._server)

    async def _unless_stopped(self, start: Coroutine[Any, Any, None]) -> None:
        """Run ``start`` until it ends or the shutdown is requested."""
        starting = asyncio.ensure_future(start)
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            stopping.cancel()
            starting.cancel()

    def _request_stop(self, reason: str) -> None:
        if not self._stop_reason:
            self._stop_reason = reason
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: it has stopped
                loop.call_soon_threadsafe(self._stop_requested.set)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._is_shutting_down:
            self._announce(f"Received {number.name} during the shutdown: cancelling what is left.")
            self._shutdown_deadline.cut()
        elif self._shutdown_delay and self._serving is not None and not self._serving.in_flight.stopping:
            self._serving.in_flight.stopping = True
            self._announce(f"Received {number.name}: shutting down in {self._shutdown_delay:g} seconds.")
            asyncio.get_running_loop().call_later(self._shutdown_delay, self._request_stop, f"received {number.name}")
        else:
            self._request_stop(f"received {number.name}")

    # The shutdown

    async def _shut_down(self, runtime: Runtime) -> None:
        if self._stop_reason:
            self._announce(f"Shutting down: {self._stop_reason}.")
        in_flight = runtime.in_flight
        self._shutdown_deadline = deadline = Deadline(self.shutdown_timeout)
        self._is_shutting_down = True
        with deadline.scope():
            await self._drain(runtime)
        await drain_after_delay(deadline, in_flight, end_subscriptions=end_subscriptions)
        unfinished = in_flight.names
        deadline.reserve(CLEANUP_SECONDS)
        await cancel_remaining(deadline, in_flight)
        # Waiting for threads is useless, because they cannot be cancelled. Their tasks need a moment to end.
        interrupted, errors = await self._close(deadline, share=0.1 if in_flight.running else 0.5)
        unfinished += interrupted
        if self._daphne is not None:
            unfinished += await self._daphne.close_connections(in_flight, deadline)
        if unfinished:
            errors.append(
                ShutdownTimeout(
                    f"The shutdown's deadline passed with {len(unfinished)} still running, now cancelled: "
                    f"{listed(unfinished)}. It had {self.shutdown_timeout:g} seconds; see shutdown_timeout."
                )
            )
        _raise_last(errors)

    async def _drain(self, runtime: Runtime) -> None:
        """Steps 1 to 3: refuse new requests, let the calls finish, end the streams."""
        runtime.in_flight.draining = True
        if self._daphne is not None:
            # A client needs a new connection to answer a question, if it uses all its connections for calls.
            await runtime.in_flight.questions_answered()
            await self._daphne.stop_accepting()
        await drain(runtime.in_flight, end_subscriptions=end_subscriptions)

    async def _close(self, deadline: Deadline, share: float) -> tuple[list[str], list[Exception]]:
        """Step 4: leave the session managers and the lifespans.

        Returns:
            the cleanups that were interrupted, and the errors.
        """
        errors: list[Exception] = []
        if self._stdio is not None:
            try:
                await self._stdio.close(deadline, share)
            except Exception as error:
                errors.append(error)
        await asyncio.gather(*(runtime.stop_services(deadline, share) for runtime in runtimes()))
        # However long the session managers took, the user's own cleanup has its seconds.
        deadline.reserve(CLEANUP_SECONDS)
        results = await asyncio.gather(
            *(runtime.leave_lifespan(deadline) for runtime in runtimes()), return_exceptions=True
        )
        await finish_records(deadline)
        errors += [result for result in results if isinstance(result, Exception)]
        interrupted = [
            f"the cleanup of the lifespan of {runtime.server.name!r}"
            for runtime, result in zip(runtimes(), results, strict=True)
            if result is False
        ]
        return interrupted, errors

    # The line that says where clients connect

    async def _describe_server(self) -> str:
        name = f"{self._server.name} {self._server.version}".strip()
        offers = await sdk.offers(self.mcp)
        if all(number == 0 for number in offers.values()):
            logger.warning("The MCP server %s has no tool, no resource and no prompt: clients see nothing.", name)
        tools = offers["tools"]
        return f"MCP server {name}" + ("" if tools is None else f" ({tools} tool{'' if tools == 1 else 's'})")

    def _where(self, addresses: list[str]) -> str:
        from mcp_serving.asgi import lifecycle

        paths = [path for handler in lifecycle.handlers_of(self._server) for path in handler.paths]
        if paths:
            return "at " + ", ".join(address + path for address in addresses for path in paths)
        logger.warning(
            "No StreamableHTTPHandler of this MCP server is mounted, so no client can reach it over HTTP: add "
            '*StreamableHTTPHandler(server).urlpatterns("mcp") to the URLRouter of the ASGI application.'
        )
        return f"not mounted at {', '.join(addresses)}, where the Daphne server listens"


def _raise_last(errors: list[Exception]) -> None:
    """Raise the last error. The errors before it are logged."""
    for error in errors[:-1]:
        logger.error("The shutdown continued after an error.", exc_info=error)
    if errors:
        raise errors[-1]
