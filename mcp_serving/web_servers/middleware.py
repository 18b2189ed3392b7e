"""One HTTP request or WebSocket as an exchange of a in_flight, and the gaps that ASGI servers leave open.

Each of the following was seen with Daphne 4.2. It keeps the headers of a stream back until its first
chunk. It answers an exception only at its next poll, up to a second later, and one raised after the
response has started stops that poll for the whole process. It never answers an application that returns
without a response. ``receive()`` blocks for ever once it has returned ``http.disconnect``. ``send()`` takes
everything at once, whether the client reads or not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio
from starlette.responses import PlainTextResponse

from mcp_serving import current_request
from mcp_serving.logs import escaped
from mcp_serving.shutdown.in_flight import InFlightRequest, InFlightRequests
from mcp_serving.web_servers import daphne, draining
from mcp_serving.web_servers.responses import SHUTTING_DOWN

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_WIRE = "mcp_serving.wire"

WATCH_AFTER = 0.05
"""Seconds until somebody watches whether the client of a call is still there: most calls are answered before."""


def wire_of(scope: Scope) -> HTTPWire | None:
    """The wire of this request, if there is a guard further out."""
    wire: HTTPWire | None = scope.get(_WIRE)
    return wire


class RequestTrackingMiddleware:
    """An ASGI application around another one: every request through it is in the in_flight."""

    def __init__(self, app: ASGIApp, in_flight: InFlightRequests) -> None:
        self._app = app
        self._ledger = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ledger.draining:
            about_a_call = await draining.let_through(scope, receive)
            # With no call left to be about, it would start what is being closed again.
            if about_a_call is None or not self._ledger.calls:
                await SHUTTING_DOWN(scope, receive, send)
                return
            receive = about_a_call
        exchange = self._ledger.open(f"{escaped(scope['method'][:20])} {scope['path'][:100]!r}")
        exchange.task = asyncio.current_task()
        wire = HTTPWire(exchange, scope, receive, send)

        async def refuse() -> None:
            if not await wire.fail(503, "The server is shutting down.\n"):
                daphne.abort(send)

        exchange.answer_instead = refuse
        try:
            with current_request.updated(in_flight=exchange):
                await self._app({**scope, _WIRE: wire}, wire.receive, wire.send)
            await wire.complete()
        except asyncio.CancelledError:
            if not self._ledger.draining:
                raise
            await refuse()
        except BaseException:  # sys.exit() in a view, too, must not end the web server
            logger.exception("%s raised an exception.", exchange.what)
            if not await wire.fail(500, "Internal Server Error\n"):
                daphne.abort(send)
        finally:
            exchange.close()
            # They refer to the exchange themselves: left there, only the garbage collector would free a request, with
            # a pause for all the others. And a session keeps the exchange that opened it.
            exchange.answer_instead = exchange.task = exchange.on_end = None

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ledger.draining:
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})
            return
        exchange = self._ledger.open(f"WebSocket {scope['path'][:100]!r}", standing=True)
        exchange.task = asyncio.current_task()
        wire = _EndableWire(exchange, receive, {"type": "websocket.disconnect", "code": 1001})
        try:
            await self._app(scope, wire.receive, send)
        except asyncio.CancelledError:
            if not self._ledger.draining:
                raise
        except Exception as error:
            if wire.has_received:
                raise
            if isinstance(error, ValueError):  # of a router without WebSockets: anybody can ask for one
                logger.warning("Refused a WebSocket for %.200r: %s", scope["path"], error)
            else:
                logger.exception("%s raised an exception.", exchange.what)
            await wire.receive()
            await send({"type": "websocket.close"})
        finally:
            if exchange.ended:
                daphne.go_away(send)
            exchange.close()


class _EndableWire:
    """The receiving side of a connection that its exchange can end, as if the client had left."""

    def __init__(self, exchange: InFlightRequest, receive: Receive, goodbye: Message) -> None:
        self.exchange = exchange
        self._receive = receive
        self._goodbye = goodbye
        self.has_received = False

    async def receive(self) -> Message:
        self.has_received = True
        if not self.exchange.ended:
            with anyio.CancelScope() as waiting:
                self.exchange.on_end = waiting.cancel
                return await self._next()
        return dict(self._goodbye)

    async def _next(self) -> Message:
        return await self._receive()


class HTTPWire(_EndableWire):
    """Both sides of one HTTP request, remembering how far it got."""

    def __init__(self, exchange: InFlightRequest, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(exchange, receive, {"type": "http.disconnect"})
        self._scope = scope
        self._send = send
        self._back_pressure = daphne.BackPressure.of(send, exchange)
        self._body_read = False
        self._client_left = False
        self._started = False
        self._finished = False
        self._streams_events = False
        self._call: asyncio.Task[object] | None = None
        self._wait_cancelled = False
        self._application_watches = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def run_call(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application that answers one call, which ends when the client leaves.

        The SDK notices that by itself where it streams, and not at all where it answers with JSON. What is
        cancelled at 2026-07-28 is the call; in an older session it is only the wait for its answer.
        """
        self._call = task = asyncio.current_task()
        assert task is not None
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if self._wait_cancelled:
                task.uncancel()
            if not self._client_left or task.cancelling():  # somebody else means it
                raise
        finally:
            self._call = None
            if self._watch_timer is not None:
                self._watch_timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    async def receive(self) -> Message:
        if self._client_left:
            return {"type": "http.disconnect"}
        if self._body_read:
            self._application_watches = True
            message = await super().receive()
        else:  # there is nothing to end yet: no scope for the ordinary request
            message = await self._receive()
        if message["type"] == "http.disconnect":
            if not self.exchange.ended:
                await self._leave()
        elif not message.get("more_body", False):
            self._body_read = True
            if self._call is not None:
                self._watch_timer = asyncio.get_running_loop().call_later(WATCH_AFTER, self._watch)
        return message

    async def _next(self) -> Message:
        if self._watcher is None:
            return await self._receive()
        await asyncio.wait({self._watcher})
        return {"type": "http.disconnect"}

    def _watch(self) -> None:
        if not self._application_watches:
            self._watcher = asyncio.ensure_future(self._until_client_leaves())

    async def _until_client_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        await self._leave()

    async def _leave(self) -> None:
        """The client has left, or has its whole response: servers say the same of both."""
        self._client_left = True
        if self._call is None or self._finished:
            return
        self.exchange.close()
        daphne.let_go(self._send)
        if self._application_watches:
            return
        # Not by a cancel scope around each call, which would cost more than the rest of the wire. A handler has one, so
        # that what shields itself is left alone; what only waits for a handler in another task shields nothing.
        if not self.exchange.give_up(self._call):
            self._wait_cancelled = self._call.cancel()
        if not self._body_read:  # it would take half a body for an error worth a traceback
            await anyio.lowlevel.checkpoint()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            await self._send(message)
            if _is_event_stream(message):
                self._streams_events = True
                await self._send({"type": "http.response.body", "body": b"", "more_body": True})
            return
        if message["type"] == "http.response.body":
            more_body = message.get("more_body", False)
            if self._back_pressure is not None:
                if more_body or len(message.get("body", b"")) > self._back_pressure.PIECE:
                    await self._send_as_it_is_read(message, self._back_pressure)
                    return
                self._back_pressure.release()
            self._finished = not more_body
        await self._send(message)

    async def _send_as_it_is_read(self, message: Message, back_pressure: daphne.BackPressure) -> None:
        """Send a body, or a part of one, piece by piece: what the client has not read yet stays where it was."""
        body, more_body = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), back_pressure.PIECE):
            end = start + back_pressure.PIECE
            piece = {"type": message["type"], "body": body[start:end], "more_body": more_body or end < len(body)}
            if not piece["more_body"]:
                await self.send(piece)
            elif not await back_pressure.send(piece):
                self._lose_reader()
                return

    def _lose_reader(self) -> None:
        """The client has stopped reading: from now on it counts as one that has left."""
        logger.warning(
            "%s: its client has stopped reading the answer, and its connection is closed.", self.exchange.what
        )
        self.exchange.lose_reader()
        daphne.abort(self._send)

    async def complete(self) -> None:
        """End what the application has left open: a stream that was ended, a request never answered."""
        if self._client_left or self._finished:
            return
        if not self._started and not self.exchange.ended:
            logger.error("%s was not answered by the application.", self.exchange.what)
        if not await self.fail(503 if self.exchange.ended else 500, "No response.\n"):
            daphne.abort(self._send)

    async def fail(self, status: int, text: str) -> bool:
        """Answer with an error if there is still room for one; False for a response that has to be broken off."""
        if self._client_left or self._finished:
            return True
        if not self._started:
            await PlainTextResponse(text, status)(self._scope, self.receive, self.send)
            return True
        if self._streams_events:
            await self.send({"type": "http.response.body", "body": b""})
            return True
        return False


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
