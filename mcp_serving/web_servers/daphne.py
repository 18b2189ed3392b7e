"""Daphne: back-pressure, broken responses, WebSockets that close, and its shutdown. ASGI has no message for these.

Daphne is recognised, never imported: under other web servers, and over stdio, it is not loaded. This module uses names
that Daphne, Twisted and Autobahn do not declare public. When one of them moves, a test in
tests/web_servers/test_daphne_boundary.py fails, and ``warn_of_missing_protections`` logs the missing protections.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from starlette.types import Message, Send

    from mcp_serving.shutdown.in_flight import InFlightRequest

logger = logging.getLogger(__name__)

STALLED_SECONDS = 1.0
"""In a shutdown, a client that reads nothing of its response for this long is not waited for."""

WRITE_TIMEOUT = 60.0
"""Seconds that a client may read nothing of its response, if the Daphne server has no attribute ``write_timeout``."""

PIECE = 2**16
"""Bytes that are sent at once. With more, Twisted takes its buffer for full."""

TICK = 0.5
"""Seconds between two looks at a client that does not read."""


def abort(send: Send) -> None:
    """Break off a response that cannot be completed, so that its client does not take it for complete.

    With a reset: for an HTTP/1.0 client (nginx as a proxy, by default), an orderly close is the end of the body.
    """
    _, protocol = _server_and_protocol(send)
    if protocol is not None and protocol.transport is not None:
        protocol.transport.abortConnection()


def replaced_root_path(send: Send) -> str | None:
    """The root path of the Daphne server, if a client has replaced it; else None.

    Daphne trusts the request header ``Daphne-Root-Path`` of any client.
    """
    server, protocol = _server_and_protocol(send)
    if server is None or getattr(protocol, "root_path", server.root_path) == server.root_path:
        return None
    return str(server.root_path)


def go_away(send: Send) -> None:
    """Close a WebSocket with the code 1001. ``websocket.close`` cannot: Autobahn reserves that code for itself."""
    _, protocol = _server_and_protocol(send)
    if protocol is not None and protocol.state == protocol.STATE_OPEN:
        protocol.sendCloseFrame(code=1001)


def forget_application(send: Send) -> None:
    """Remove an application whose client has left from Daphne's connection table.

    Otherwise Daphne logs a warning after ten seconds, and cancels it. A sync tool, in a thread that cannot be
    cancelled, may take that long.
    """
    server, protocol = _server_and_protocol(send)
    if server is not None and protocol in server.connections:
        _forget_application(server.connections[protocol])


def forget_applications(server: Any) -> None:
    """Remove all applications from Daphne's connection table, so that its shutdown does not wait for any.

    Half-received requests have no application, and some applications cannot be cancelled.
    """
    for details in getattr(server, "connections", {}).values():
        _forget_application(details)


def _forget_application(details: dict[str, Any]) -> None:
    done = sys.modules["daphne.server"].twisted_loop.create_future()
    done.set_result(None)
    # Not deleted: at its shutdown, Daphne expects each connection to have an application.
    details["application_instance"] = done


class BackPressure:
    """Lets an application wait while its client does not read. Daphne's ``send`` takes everything at once.

    For Twisted it is a push producer: Twisted tells it when the connection's buffer is full, and when it is empty.
    """

    is_possible = True
    """Whether Daphne and Twisted have the names that it needs."""

    def __init__(self, send: Send, server: Any, request: Any, in_flight: InFlightRequest) -> None:
        seconds = getattr(server, "write_timeout", WRITE_TIMEOUT)
        self._write_timeout: float = math.inf if seconds is None else seconds
        self._send = send
        self._request = request
        self._in_flight = in_flight
        self._room = asyncio.Event()
        self._room.set()
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    def of(cls, send: Send, in_flight: InFlightRequest) -> BackPressure | None:
        """For the ``send`` of an HTTP request under Daphne; None under other servers, which have back-pressure."""
        server, protocol = _server_and_protocol(send)
        return None if server is None or not cls.is_possible else cls(send, server, protocol, in_flight)

    async def send(self, body: bytes) -> bool:
        """Send a part of a body that is not the last one, and wait until the client has taken it.

        Returns:
            False if the client has stopped reading: its connection is then closed. True also if it has left.
        """
        for start in range(0, max(len(body), 1), PIECE):
            piece = {"type": "http.response.body", "body": body[start : start + PIECE], "more_body": True}
            if not await self._send_piece(piece):
                logger.warning(
                    "%s: its client has stopped reading the answer, and its connection is closed.", self._in_flight.name
                )
                self._in_flight.lose_reader()
                abort(self._send)
                return False
        return True

    async def _send_piece(self, piece: Message) -> bool:
        async with self._one_at_a_time:
            if not self._is_over and self._request.producer is None:
                self._request.registerProducer(self, True)
            await self._send(piece)
            return self._room.is_set() or await self._is_taken()

    async def _is_taken(self) -> bool:
        progress, since = self._progress(), time.monotonic()
        while not self._is_over:
            with anyio.move_on_after(TICK):
                await self._room.wait()
                return True
            if progress != (progress := self._progress()):
                since = time.monotonic()
            elif time.monotonic() - since >= self._patience:
                return False
        return True

    @property
    def _patience(self) -> float:
        return min(self._write_timeout, STALLED_SECONDS) if self._in_flight.draining else self._write_timeout

    def release(self) -> None:
        """Let a waiting application continue: the response is about to end."""
        self._room.set()
        if not self._is_over and self._request.producer is self:
            self._request.unregisterProducer()

    @property
    def _is_over(self) -> bool:
        return self._request.finished or self._request.channel is None

    def _progress(self) -> tuple[int, int] | None:
        return None if self._is_over else progress_of(self._request.channel.transport)

    # The methods of a Twisted producer

    def pauseProducing(self) -> None:  # noqa: N802
        self._room.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self._room.set()

    def stopProducing(self) -> None:  # noqa: N802
        self._room.set()


def progress_of(transport: Any) -> tuple[int, int]:
    """A value that changes whenever the client has read a part of the connection's buffer."""
    return transport.offset, len(transport.dataBuffer)


def _server_and_protocol(send: Callable[..., Awaitable[None]]) -> tuple[Any, Any]:
    """Daphne's server and protocol object behind a ``send`` of Daphne; None for both behind any other ``send``."""
    daphne = sys.modules.get("daphne.server")
    if daphne is not None and isinstance(send, partial):
        server = getattr(send.func, "__self__", None)
        if isinstance(server, daphne.Server):
            return server, send.args[0]
    return None, None


# Names that have moved


def warn_of_missing_protections() -> None:
    """Log a warning if Daphne or one of its dependencies has moved a name that this module uses.

    To be called in Daphne's event loop, before the first request is served.
    """
    recognises_send = _recognises_send()
    BackPressure.is_possible = (
        recognises_send
        and _has("twisted.web.http", "Request", "producer", "registerProducer", "unregisterProducer", "finished")
        and _has("twisted.internet.abstract", "FileDescriptor", "offset", "dataBuffer")
    )
    protections = {
        "a client that does not read its response can fill the memory": BackPressure.is_possible,
        "a response that broke off can look complete": recognises_send,
        "WebSockets are closed without the code 1001": _has(
            "autobahn.twisted.websocket", "WebSocketServerProtocol", "STATE_OPEN", "sendCloseFrame"
        ),
    }
    if missing := [danger for danger, is_prevented in protections.items() if not is_prevented]:
        logger.warning(
            "This release of Daphne, Twisted or Autobahn is not supported, and protections are missing: %s. Install "
            "the releases that mcp-serving requires: pip install --upgrade mcp-serving.",
            "; ".join(missing),
        )


def _has(module: str, class_name: str, *names: str) -> bool:
    found = getattr(sys.modules.get(module), class_name, None)
    return all(hasattr(found, name) for name in names)


def _recognises_send() -> bool:
    """Whether this module recognises the ``send`` of Daphne: tried with a server that never listens."""
    sends: list[Send] = []
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)

    def application(scope: Any, receive: Any, send: Send) -> asyncio.Future[None]:
        sends.append(send)
        return done

    server, protocol = sys.modules["daphne.server"].Server(application, endpoints=["tcp:0"]), object()
    server.connections = {protocol: {}}
    try:
        server.create_application(protocol, {"type": "http"})
    except Exception:
        return False
    known = "application_instance" in server.connections[protocol]
    return known and _server_and_protocol(sends[0]) == (server, protocol)


# The shutdown


def runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether Daphne's module has installed this event loop."""
    daphne = sys.modules.get("daphne.server")
    return daphne is not None and daphne.twisted_loop is loop


def close_with_reactor(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]], seconds: float
) -> None:
    """Run ``close`` in Daphne's loop when Daphne shuts down. Daphne does not speak the ASGI lifespan.

    Args:
        loop: Daphne's event loop, which is running.
        close: may be called twice.
        seconds: the longest time that it takes.
    """
    reactor, deferred = sys.modules["twisted.internet.reactor"], sys.modules["twisted.internet.defer"].Deferred
    reactor.addSystemEventTrigger("before", "shutdown", lambda: deferred.fromFuture(loop.create_task(close())))
    if threading.current_thread() is not threading.main_thread():
        # Not a daemon: the interpreter waits for it, and it waits for the main thread.
        threading.Thread(target=_close_with_main_thread, args=(loop, close, seconds), daemon=False).start()


def _close_with_main_thread(
    loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]], seconds: float
) -> None:
    """Under ``runserver``: its autoreload ends the main thread, and the reactor runs on in another thread."""
    threading.main_thread().join()
    with suppress(RuntimeError, TimeoutError):  # the loop is closed, or hangs
        asyncio.run_coroutine_threadsafe(close(), loop).result(seconds)
