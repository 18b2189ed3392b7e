from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.conf import settings

from mcp_serving import current_request, sdk
from mcp_serving.conf import DEFAULT_SHUTDOWN_TIMEOUT, valid_shutdown_timeout
from mcp_serving.errors import AccessNotStated, NoHTTPServer, ShutdownTimeout
from mcp_serving.runtime import Runtime, end_subscriptions, imports_frozen, runtimes
from mcp_serving.shutdown import os_signals
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.drain import cancel_remaining, drain
from mcp_serving.shutdown.in_flight import CANCELLED_SECONDS, listed
from mcp_serving.stdio.streams import StandardStreams
from mcp_serving.stdio.transport import StdioTransport
from mcp_serving.transport import Transport

if TYPE_CHECKING:
    import signal

    from daphne.server import Server as DaphneServer
    from django.contrib.auth.models import AbstractBaseUser
    from mcp.server.lowlevel.server import Server as LowLevelServer

    from mcp_serving.daphne.transport import DaphneTransport
    from mcp_serving.shutdown.in_flight import InFlightRequests

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 1.0
"""How long the session managers and the lifespan may take to be left when the shutdown's deadline has passed."""


class Server:
    """Serves one MCP server object over stdio, over a Daphne server, or over both.

    Args:
        mcp: an ``MCPServer`` or a low-level ``Server`` of the SDK.
        transport: ``Transport.STDIO``, ``Transport.HTTP`` or ``Transport.BOTH``, or its name.
        http_server: a ``daphne.server.Server``, or a callable without arguments that returns one and is
            called once, only for http and both. It is served as given, except that signals and the
            shutdown are handled here.
        shutdown_timeout: seconds that the whole graceful shutdown may take.
        user: the Django user that ``get_user()`` gives over stdio; nobody if left out. Over HTTP it is the
            request's.

    Raises:
        InvalidServer: ``mcp`` is not a server of the SDK.
        InvalidTransport: ``transport`` is none of the three.
        InvalidShutdownTimeout: ``shutdown_timeout`` is negative, not finite or not a number.
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
        user: AbstractBaseUser | None = None,
    ) -> None:
        self.mcp = mcp
        """The server of the SDK underneath."""
        self.transport = Transport(transport)
        self.shutdown_timeout = valid_shutdown_timeout(shutdown_timeout)
        self._server: LowLevelServer[Any] = sdk.low_level(mcp)
        if self.transport.uses_http and http_server is None:
            raise NoHTTPServer(
                f"Transport {str(self.transport)!r} needs a Daphne server: set MCP_SERVING['HTTP_SERVER'], or give "
                "--http-server, the dotted path to the callable that builds it; in Python, http_server=..."
            )
        self._http_server = http_server
        self._user = user
        self._announce: Callable[[str], None] = logger.info
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._stop_reason = ""
        self._has_run = False
        self._deadline: Deadline | None = None

    def run(self, *, announce: Callable[[str], None] | None = None, streams: StandardStreams | None = None) -> None:
        """Serve until a signal, ``stop()`` or the end of a transport, then shut down gracefully.

        Blocks. It can be called once. SIGINT, SIGTERM and SIGHUP are handled while it runs, if it runs in
        the main thread; a second one cuts the shutdown short.

        Args:
            announce: is given one line when a transport is ready, and one when the shutdown begins; the
                default logs them.
            streams: standard input and output, where the caller has claimed them already.

        Raises:
            InvalidHTTPServer, NoApplication, InvalidEndpoint: the Daphne server cannot be used.
            AccessNotStated: ``DEBUG`` is off, and a handler does not say who may call.
            ListenError: it cannot listen.
            ShutdownTimeout: the deadline passed; names what was still running.
            RuntimeError: it has been run before.
            Exception: what the server's lifespan raised.
        """
        if self._has_run:
            raise RuntimeError("This Server has been run already: build a new one.")
        self._has_run = True
        if announce is not None:
            self._announce = announce
        with self._standard_streams(streams) as streams:
            if self.transport.uses_http:
                self._run_in_daphnes_loop(streams)
            else:
                self._run_in_own_loop(streams)

    def stop(self) -> None:
        """Ask it to shut down; safe from any thread and from a signal handler.

        Returns at once. Called before ``run()``, it makes that return as soon as it is called; called
        after it, or again, it does nothing.
        """
        self._request_stop("stop() was called")

    # Where it runs

    @contextmanager
    def _standard_streams(self, claimed: StandardStreams | None) -> Iterator[StandardStreams | None]:
        """Standard input and output, where they are served; given back at the end if they were claimed here."""
        if claimed is not None or not self.transport.uses_stdio:
            yield claimed
            return
        streams = StandardStreams()
        try:
            yield streams
        finally:
            streams.release()

    def _run_in_own_loop(self, streams: StandardStreams | None) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            with os_signals.handled_by(loop, self._on_signal):
                loop.run_until_complete(self._serve(streams, None))
        finally:
            loop.run_until_complete(_end_stray_tasks())
            asyncio.set_event_loop(None)
            if not asyncio.all_tasks(loop):  # what could not be cancelled keeps its loop
                loop.close()

    def _run_in_daphnes_loop(self, streams: StandardStreams | None) -> None:
        from mcp_serving.daphne import transport as http

        daphne = http.DaphneTransport(http.build(self._http_server))
        _must_say_who_may_call()
        loop = http.loop
        asyncio.set_event_loop(loop)
        with os_signals.handled_by(loop, self._on_signal):
            serving = loop.create_task(self._serve(streams, daphne))
            either: set[asyncio.Future[Any]] = {serving, daphne.started}
            loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
            if daphne.started.done():
                serving.add_done_callback(lambda _: daphne.stop())
                try:
                    daphne.run()
                finally:
                    # Whoever stopped the reactor behind our back gets a graceful shutdown all the same.
                    self._request_stop("the Daphne server was stopped")
                    loop.run_until_complete(asyncio.wait({serving}))
            loop.run_until_complete(_end_stray_tasks())
        serving.result()

    # Its life, from the first await to the last

    async def _serve(self, streams: StandardStreams | None, daphne: DaphneTransport | None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stop_reason:
            return
        runtime = Runtime.of(self._server)
        runtime.on_broken = self._request_stop
        stdio = None if streams is None else StdioTransport(streams, runtime.in_flight, self._request_stop)
        try:
            await self._unless_stopping(self._start(runtime, stdio, daphne))
            with imports_frozen():
                await self._stopping.wait()
        finally:
            await self._shut_down(runtime, stdio, daphne)

    async def _start(self, runtime: Runtime, stdio: StdioTransport | None, daphne: DaphneTransport | None) -> None:
        """Enter the lifespan, then let the clients in."""
        served = await self._open(runtime)
        identity = await self._introduce()
        if daphne is not None:
            addresses = await daphne.listen(runtime.in_flight)
            self._announce(f"{identity} is {self._where(addresses)}. Stop it with Ctrl-C or SIGTERM.")
        if stdio is not None:
            # For the task that serves stdio: it begins with a copy of this context.
            current_request.update(local_user=self._user)
            stdio.start(served)
            hint = " This is a terminal: an MCP client is expected there." if stdio.is_terminal else ""
            self._announce(
                f"{identity} is on standard input and output.{hint} Stop it with Ctrl-C or by closing its input."
            )

    async def _open(self, runtime: Runtime) -> LowLevelServer[Any]:
        if not self.transport.uses_http:
            return await runtime.open()
        from mcp_serving.asgi import lifecycle

        lifecycle.leave_shutdown_to_server()
        return await lifecycle.start(self._server)

    async def _unless_stopping(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine to its end, or until the shutdown is asked for."""
        work = asyncio.ensure_future(coroutine)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            stopping.cancel()
            work.cancel()

    # The shutdown

    async def _shut_down(self, runtime: Runtime, stdio: StdioTransport | None, daphne: DaphneTransport | None) -> None:
        if self._stop_reason:
            self._announce(f"Shutting down: {self._stop_reason}.")
        in_flight = runtime.in_flight
        self._deadline = Deadline(self.shutdown_timeout)
        with self._deadline.scope():
            await self._drain(in_flight, daphne)
        unfinished = in_flight.names
        self._deadline = _time_to_clean_up(self._deadline)
        await cancel_remaining(self._deadline, in_flight)
        # For threads that nobody can cancel there is no use in waiting, but their tasks need a moment to be ended.
        cut_short, errors = await self._close(stdio, share=0.1 if in_flight.left else 0.5)
        unfinished += cut_short
        if daphne is not None:
            unfinished += await daphne.close_connections(in_flight, self._deadline)
        if unfinished:
            errors.append(
                ShutdownTimeout(
                    f"The shutdown's deadline passed with {len(unfinished)} still running, now cancelled: "
                    f"{listed(unfinished)}. It had {self.shutdown_timeout:g} seconds; see shutdown_timeout."
                )
            )
        _raise_the_last(errors)

    async def _drain(self, in_flight: InFlightRequests, daphne: DaphneTransport | None) -> None:
        """Steps 1 to 3: take nothing new, let the calls finish, end the streams."""
        in_flight.draining = True
        if daphne is not None:
            # A client with every connection in use, as the SDK's often is, needs a new one to answer a question.
            await in_flight.questions_over()
            await daphne.stop_accepting()
        await drain(in_flight, end_subscriptions=end_subscriptions)

    async def _close(self, stdio: StdioTransport | None, share: float) -> tuple[list[str], list[Exception]]:
        """Step 4: leave the session managers and the lifespans; what was cut short, and what was raised."""
        assert self._deadline is not None
        errors: list[Exception] = []
        if stdio is not None:
            try:
                await stdio.close(self._deadline, share)
            except Exception as error:
                errors.append(error)
        await asyncio.gather(*(runtime.close_on_top(self._deadline, share) for runtime in runtimes()))
        # However long the session managers took, the user's own cleanup has its second.
        self._deadline = _time_to_clean_up(self._deadline)
        left = await asyncio.gather(
            *(runtime.close_lifespan(self._deadline) for runtime in runtimes()), return_exceptions=True
        )
        errors += [result for result in left if isinstance(result, Exception)]
        cut_short = [
            f"the cleanup of the lifespan of {runtime.server.name!r}"
            for runtime, result in zip(runtimes(), left, strict=True)
            if result is False
        ]
        return cut_short, errors

    def _request_stop(self, reason: str) -> None:
        if not self._stop_reason:
            self._stop_reason = reason
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile: it has stopped
                loop.call_soon_threadsafe(self._stopping.set)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._deadline is None:
            self._request_stop(f"received {number.name}")
        else:
            self._announce(f"Received {number.name} during the shutdown: cancelling what is left.")
            self._deadline.cut()

    # What it says when it is ready

    async def _introduce(self) -> str:
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


def _must_say_who_may_call() -> None:
    """Refuse to serve a handler that would refuse every request."""
    from mcp_serving.asgi import lifecycle

    problems = [handler.access_problem for handler in lifecycle.handlers() if handler.access_problem]
    if problems and not settings.DEBUG:
        raise AccessNotStated(f"DEBUG is off. {problems[0]}")


async def _end_stray_tasks() -> None:
    """Let what a tool or the lifespan has started, and nobody has awaited, clean up after itself."""
    stray = asyncio.all_tasks() - {asyncio.current_task()}
    for task in stray:
        task.cancel()
    if stray and (await asyncio.wait(stray, timeout=CANCELLED_SECONDS))[1]:
        return  # what waits for a thread is in the middle of its generators
    await asyncio.get_running_loop().shutdown_asyncgens()


def _time_to_clean_up(deadline: Deadline) -> Deadline:
    """What is left of the deadline, and at least the second that every cleanup has."""
    return Deadline(max(deadline.remaining, CLEANUP_SECONDS), at_least=CLEANUP_SECONDS)


def _raise_the_last(errors: list[Exception]) -> None:
    """Raise the last error; those before it would be lost, and are logged."""
    for error in errors[:-1]:
        logger.error("The shutdown went on after an error.", exc_info=error)
    if errors:
        raise errors[-1]
