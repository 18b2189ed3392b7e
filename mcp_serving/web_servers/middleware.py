"""Every HTTP request and WebSocket is in flight until it is answered, and a shutdown can end it.

ASGI servers leave gaps, each seen with Daphne 4.2. It holds the headers of a stream back until its first part. It
answers an exception at its next poll, up to a second later; an exception after the start of the response stops that
poll for the whole process. It never answers an application that returns without a response. ``receive()`` blocks for
ever after ``http.disconnect``. ``send()`` takes everything at once, whether the client reads or not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from mcp_serving import current_request
from mcp_serving.logs import RequestName
from mcp_serving.shutdown.in_flight import InFlightRequests, Kind, State
from mcp_serving.web_servers import daphne, draining
from mcp_serving.web_servers.client_messages import HTTPMessages, Watch, WebSocketMessages
from mcp_serving.web_servers.response_sender import Progress, ResponseSender
from mcp_serving.web_servers.responses import SHUTTING_DOWN

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

_SCOPE_KEY = "mcp_serving.http_request"


def http_request(scope: Scope) -> HTTPRequest | None:
    """The request of this scope; None if no ``RequestTrackingMiddleware`` is around the application."""
    request: HTTPRequest | None = scope.get(_SCOPE_KEY)
    return request


class RequestTrackingMiddleware:
    """An ASGI middleware: every request through it is in flight until it is answered.

    Args:
        app: the application.
        in_flight: all requests that the same shutdown waits for.
        is_outermost: no other middleware is around it, which could answer in place of a cancelled application.
        strips_headers: the application gets the values of headers without whitespace around them.
    """

    def __init__(
        self, app: ASGIApp, in_flight: InFlightRequests, *, is_outermost: bool = False, strips_headers: bool = False
    ) -> None:
        self._app = app
        self._in_flight = in_flight
        self._is_outermost = is_outermost
        self._strips_headers = strips_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.serve_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request."""
        if self._in_flight.draining:
            allowed = await draining.belongs_to_a_call(scope, receive)
            # Without a call in flight, it would start again what the shutdown closes.
            if allowed is None or not self._in_flight.has_calls:
                await SHUTTING_DOWN(scope, receive, send)
                return
            receive = allowed
        if self._is_outermost and (root_path := daphne.replaced_root_path(send)) is not None:
            scope = {**scope, "root_path": root_path}
        request = HTTPRequest(self._in_flight, scope, receive, send)
        try:
            with current_request.updated(in_flight=request.in_flight):
                scope = {**scope, _SCOPE_KEY: request}
                if self._strips_headers:
                    scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
                await self._app(scope, request.client.receive, request.response.send)
            if not request.is_complete:
                await request.complete()
        except asyncio.CancelledError:
            if self._in_flight.draining:
                await request.fail(503, SHUTTING_DOWN.text)
                return
            if self._is_outermost:  # Daphne would never answer it
                logger.error("%s was cancelled before it was answered.", request.in_flight.name)
                await request.fail(500, "Internal Server Error")
            raise
        except BaseException:  # also sys.exit() in a view, which must not end the web server
            logger.exception("%s raised an exception.", request.in_flight.name)
            await request.fail(500, "Internal Server Error")
        finally:
            request.close()

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._in_flight.draining:
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})
            return
        connection = WebSocket(self._in_flight, scope, receive)
        client = connection.client
        try:
            await self._app(scope, client.receive, send)
        except asyncio.CancelledError:
            if not self._in_flight.draining:
                raise
        except Exception as error:
            if client.has_begun:
                raise
            if isinstance(error, ValueError):  # of a router without WebSockets: anybody can ask for one
                logger.warning("Refused a WebSocket for %.200r: %s", scope["path"], error)
            else:
                logger.exception("%s raised an exception.", connection.in_flight.name)
            await client.receive()
            await send({"type": "websocket.close"})
        finally:
            if connection.in_flight.state is State.ENDED:
                daphne.go_away(send)
            connection.close()


class WebSocket:
    """One WebSocket connection in flight."""

    def __init__(self, in_flight: InFlightRequests, scope: Scope, receive: Receive) -> None:
        self._task = asyncio.current_task()
        self.in_flight = in_flight.open(f"WebSocket {scope['path'][:100]!r}", Kind.STREAM, self)
        self.client = WebSocketMessages(receive, self.in_flight)

    def disconnect(self) -> bool:
        return self.client.end()

    def runs_in(self, task: asyncio.Task[object]) -> bool:
        return task is self._task

    async def finish(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        self.in_flight.close()
        self.in_flight.connection = None  # see HTTPRequest.close


class HTTPRequest:
    """One HTTP request in flight: the messages of its client, and its response."""

    # Slots save memory: each session keeps the object of its last request.
    __slots__ = ("__weakref__", "_call", "_send", "_task", "_wait_cancelled", "client", "in_flight", "response")

    def __init__(self, in_flight: InFlightRequests, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._task = asyncio.current_task()
        self._call: asyncio.Task[object] | None = None
        self._wait_cancelled = False
        self.in_flight = in_flight.open(RequestName(scope["method"][:20], scope["path"]), connection=self)
        self.client = HTTPMessages(receive, self.in_flight, in_flight.watch_timer)
        self.response = ResponseSender(scope["method"], send, self.in_flight)

    def close(self) -> None:
        """It is answered."""
        self.in_flight.close()
        # A session keeps the entry of its first request, and this object of its last request. If the two referred to
        # each other, only the garbage collector could free them, while all other requests wait.
        self.in_flight.connection = None
        self._task = None

    # A call, which ends when its client leaves

    async def run_call(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application that answers one call, and cancel it when the client leaves.

        The SDK notices that where it streams, but not where it answers with JSON. At 2026-07-28 the call is cancelled.
        In a session up to 2025-11-25 the wait for the response is cancelled, and the call continues.
        """
        self._call = task = asyncio.current_task()
        assert task is not None
        self.client.start_watching(self._cancel_call)
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if self._wait_cancelled:
                task.uncancel()
            if self.client.watch is not Watch.LEFT or task.cancelling():  # cancelled by somebody else
                raise
        finally:
            self.client.stop_watching()
            self._call = None

    async def _cancel_call(self, watch: Watch) -> None:
        if self.response.progress is Progress.COMPLETE or self._call is None:
            return
        self.in_flight.close()
        daphne.forget_application(self._send)
        if watch is Watch.APPLICATION:
            return  # it cancels the call itself
        # Not by a cancel scope around each call, which would cost more than the rest of this class. An MCP handler has
        # its own scope, which respects shields. A task that only waits for a handler in another task has no shields.
        if not self.in_flight.client_left(self._call):
            self._wait_cancelled = self._call.cancel()
        if watch is Watch.READER:  # the application would take half a body for an error worth a traceback
            await anyio.lowlevel.checkpoint()

    # The end

    @property
    def is_complete(self) -> bool:
        """Whether the application has completed the response, or nobody reads it."""
        return self.response.progress is Progress.COMPLETE or self.client.watch is Watch.LEFT

    async def complete(self) -> None:
        """Respond if the application has not, and complete a response that it has left open."""
        ended = self.in_flight.state is State.ENDED
        if self.response.progress is Progress.NOT_STARTED and not ended:
            logger.error("%s was not answered by the application.", self.in_flight.name)
        await self.fail(503 if ended else 500, "No response.")

    async def fail(self, status: int, text: str) -> None:
        """Respond with an error, as far as the client can still be told."""
        if self.client.watch is not Watch.LEFT:
            await self.response.fail(status, text)

    # For the shutdown

    def disconnect(self) -> bool:
        if self.client.end():
            return True
        # An application that sends events and does not wait for its client: the end of its task ends the stream.
        is_sending = self.in_flight.kind is Kind.STREAM and self.response.progress is Progress.STREAMING_EVENTS
        return is_sending and self._task is not None and self._task.cancel()

    def runs_in(self, task: asyncio.Task[object]) -> bool:
        return task is self._call

    async def finish(self) -> None:
        try:
            await self.fail(503, SHUTTING_DOWN.text)
        finally:
            if self._task is not None:
                self._task.cancel()
