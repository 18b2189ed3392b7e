"""The Daphne server that the caller built: checked, run as given, and stopped without losing a response.

Daphne's own stop kills every request in flight, waits for applications that cannot be cancelled, and fails on a request
that was only half received. So nothing must be left for it: ``Server`` drains the requests in flight first, and
``DaphneTransport`` closes the sockets and removes the rest from Daphne's connection table.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from daphne.server import Server as DaphneServer
from daphne.server import twisted_loop
from twisted.internet import reactor as installed_reactor
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.tcp import Server as ServerConnection
from twisted.logger import globalLogBeginner
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol

from mcp_serving.errors import InvalidEndpoint, InvalidHTTPServer, ListenError, NoApplication, ReactorHasRun
from mcp_serving.loading import cause_of
from mcp_serving.web_servers.daphne import STALLED_SECONDS, forget_applications, warn_of_missing_protections
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from mcp_serving.shutdown.deadline import Deadline
    from mcp_serving.shutdown.in_flight import InFlightRequests

reactor: Any = installed_reactor

loop: asyncio.AbstractEventLoop = twisted_loop
"""The event loop that Daphne's module has installed for Twisted. Everything must run on it."""


def build(http_server: object) -> Any:
    """The Daphne server that was given, or that the given callable returns, checked before it listens.

    Raises:
        InvalidHTTPServer: it is not a Daphne server, or the callable failed.
        NoApplication: it has no application.
        InvalidEndpoint: it has no endpoint, or Twisted cannot use an endpoint.
    """
    if not isinstance(http_server, DaphneServer) and callable(http_server):
        try:
            http_server = http_server()
        except SystemExit:  # Daphne exits if a server has no endpoints
            raise InvalidEndpoint(
                "The Daphne server has no endpoint: give it endpoints=['tcp:port=8000:interface=127.0.0.1']."
            ) from None
        except Exception as error:
            raise InvalidHTTPServer(f"The callable that builds the Daphne server failed: {cause_of(error)}.") from error
    if not isinstance(http_server, DaphneServer):
        raise InvalidHTTPServer(
            f"http_server must be a daphne.server.Server or a callable returning one, "
            f"not {type(http_server).__module__}.{type(http_server).__qualname__}."
        )
    _check(http_server)
    return http_server


def _check(server: Any) -> None:
    if not callable(server.application):
        raise NoApplication(
            f"The Daphne server's application is {server.application!r}, not an ASGI application: "
            "give it application=..."
        )
    for endpoint in server.endpoints:
        _check_endpoint(str(endpoint))


def _check_endpoint(endpoint: str) -> None:
    try:
        serverFromString(reactor, endpoint)  # type: ignore[no-untyped-call]
    except Exception as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, IndexError | KeyError) and endpoint.startswith("systemd:"):
            cause = (
                "systemd has handed over no such socket (LISTEN_FDS and LISTEN_FDNAMES in the environment), "
                "or FileDescriptorName= is missing in the .socket unit"
            )
        raise InvalidEndpoint(
            f"Endpoint {endpoint!r} cannot be used: {cause}. An endpoint reads like "
            "'tcp:port=8000:interface=127.0.0.1', 'unix:/run/app.sock' or "
            "'ssl:port=443:privateKey=key.pem:certKey=cert.pem'."
        ) from error
    kind, _, arguments = endpoint.partition(":")
    port = re.search(r"(?:^|:)port=(-?\d+)", arguments) or re.match(r"(-?\d+)(?::|$)", arguments)
    if kind.lower() in ("tcp", "tcp6", "ssl") and port and not 0 <= int(port[1]) <= 65535:
        raise InvalidEndpoint(f"Endpoint {endpoint!r} cannot be used: port {port[1]} is not in 0 to 65535.")


class DaphneTransport:
    """Runs a Daphne server as given. docs/daphne.md lists the changes.

    A ``RequestTrackingMiddleware`` is put around its ``application``, so that every request is in flight until it is
    answered. Its ``signal_handlers`` are off, because signals start the graceful shutdown. Calls of ``listen_success``
    and ``listen_error`` are noticed.

    Raises:
        ReactorHasRun: a Daphne server has run in this process before.
    """

    _has_run = False

    def __init__(self, server: Any) -> None:
        if DaphneTransport._has_run:
            raise ReactorHasRun("Twisted's reactor runs once in a process, and it has run: start a new process.")
        self.started: asyncio.Future[None] = loop.create_future()
        """Done when ``run`` is to be called: Daphne runs the event loop itself."""
        self._server = server
        self._ports: list[Any] = []
        self._failure: ListenError | None = None
        self._pending = len(server.endpoints)
        self._listening = asyncio.Event()
        server.signal_handlers = False
        # Only these tell the result of listening: Daphne logs a failure and continues, or exits with status 0.
        server.listen_success = partial(self._listens, server.listen_success)
        server.listen_error = partial(self._cannot_listen, server.listen_error)

    def run(self) -> None:
        """Listen and serve, until ``stop`` is called."""
        DaphneTransport._has_run = True
        # From verbosity 2 on, Twisted would redirect standard error to logging, and a logging handler that writes to
        # standard error would loop endlessly. The handler of rich does so. The SDK installs it if rich is installed.
        globalLogBeginner.beginLoggingTo = partial(  # type: ignore[method-assign]
            globalLogBeginner.beginLoggingTo, redirectStandardIO=False
        )
        self._server.run()

    async def listen(self, in_flight: InFlightRequests) -> list[str]:
        """Have ``run`` called, and wait until every endpoint is bound.

        Returns:
            the addresses of the endpoints, as a client writes them.

        Raises:
            ListenError: an endpoint cannot be bound.
        """
        warn_of_missing_protections()
        self._server.application = RequestTrackingMiddleware(self._server.application, in_flight, is_outermost=True)
        self.started.set_result(None)
        await self._listening.wait()
        if self._failure is not None:
            raise self._failure
        return [_address(port) + str(self._server.root_path) for port in self._ports]

    def _listens(self, original: Callable[[Any], None], port: Any) -> None:
        self._ports.append(port)
        original(port)
        self._pending -= 1
        if self._pending == 0:
            self._listening.set()

    def _cannot_listen(self, original: Callable[[Failure], None], failure: Failure) -> None:
        error = failure.value
        hint = "Stop what listens there, or change the endpoint." if isinstance(error, CannotListenError) else ""
        self._failure = ListenError(f"The Daphne server cannot listen: {error} {hint}".rstrip())
        self._failure.errno = getattr(getattr(error, "socketError", error), "errno", None)
        self._failure.__cause__ = error
        self._listening.set()
        if type(self._server).listen_error is not DaphneServer.listen_error:
            original(failure)

    async def stop_accepting(self) -> None:
        """Close the listening sockets: new connections are refused."""
        ports, self._ports = self._ports, []
        for port in ports:
            await maybeDeferred(port.stopListening).asFuture(loop)

    async def close_connections(self, in_flight: InFlightRequests, deadline: Deadline) -> list[str]:
        """Close each connection as soon as its client has read everything; name the clients that have not."""
        await self.stop_accepting()
        connections = [_Closing(reader, deadline) for reader in _selectables() if isinstance(reader, ServerConnection)]
        await asyncio.gather(*(connection.closed() for connection in connections))
        unread = in_flight.unread + sum(connection.unread for connection in connections)
        return [f"{unread} client{'' if unread == 1 else 's'} reading an answer"] if unread else []

    def stop(self) -> None:
        """End ``run`` without waiting for anything."""
        forget_applications(self._server)
        self._server.stop()


def _selectables() -> set[Any]:
    return {*reactor.getReaders(), *reactor.getWriters()}


class _Closing:
    """A connection that is closed as soon as its client has read everything, or has stopped reading."""

    def __init__(self, connection: Any, deadline: Deadline) -> None:
        self.unread = False
        self._connection = connection
        self._deadline = deadline
        self._closed: asyncio.Future[None] = loop.create_future()
        self._stalled = anyio.CancelScope()
        self._connection_lost = connection.connectionLost
        self._write_some_data = connection.writeSomeData
        connection.connectionLost = self._lost
        connection.writeSomeData = self._write

    async def closed(self) -> None:
        if isinstance(self._connection.protocol, TLSMemoryBIOProtocol):
            # TLS's closing message, without waiting for the client's.
            self._connection.protocol.loseConnection()  # type: ignore[no-untyped-call]
        self._connection.unregisterProducer()  # it would keep the connection open until the buffer is empty
        self._connection.loseConnection()
        with self._deadline.scope(), self._stalled:
            self._expect_progress()
            await self._closed
            return
        self.unread = True
        self._connection.abortConnection()

    def _expect_progress(self) -> None:
        self._stalled.deadline = anyio.current_time() + STALLED_SECONDS

    def _write(self, data: bytes) -> Any:
        written = self._write_some_data(data)
        self._expect_progress()
        return written

    def _lost(self, reason: Failure) -> None:
        self._connection_lost(reason)
        if not self._closed.done():
            self._closed.set_result(None)


def _address(port: Any) -> str:
    host = port.getHost()
    if isinstance(host, UNIXAddress):
        return f"http://unix:{os.fsdecode(host.name or b'')}:"  # nginx writes it so, before a path
    scheme = "https" if isinstance(port.factory, TLSMemoryBIOFactory) else "http"
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"{scheme}://{name}:{host.port}"
