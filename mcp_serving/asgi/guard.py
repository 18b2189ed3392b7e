"""One HTTP request or WebSocket as an exchange of a ledger, and the gaps that ASGI servers leave open.

Each of the following was seen with Daphne 4.2. It keeps the headers of a stream back until its first
chunk. It answers an exception only at its next poll, up to a second later, and one raised after the
response has started stops that poll for the whole process. It never answers an application that returns
without a response. ``receive()`` blocks for ever once it has returned ``http.disconnect``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import anyio

from mcp_serving.asgi import draining
from mcp_serving.ledger import Exchange, Ledger, current_exchange

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

_EXCHANGE = "mcp_serving.exchange"


def exchange_of(scope: Scope) -> Exchange | None:
    """The exchange that a guard further out has opened for this request."""
    exchange: Exchange | None = scope.get(_EXCHANGE)
    return exchange


async def respond(
    send: Send,
    status: int,
    text: str,
    *,
    content_type: bytes = b"text/plain; charset=utf-8",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Send a whole response with a short body."""
    body = text.encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def refuse_for_shutdown(send: Send) -> None:
    await respond(
        send,
        503,
        "The server is shutting down.\n",
        headers=[(b"retry-after", b"1"), (b"connection", b"close")],
    )


class Guard:
    """An ASGI application around another one: every request through it is in the ledger.

    ``abort`` and ``go_away`` do what ASGI has no message for: break off a response that cannot be
    completed, and tell a WebSocket client that the server goes away. Both are given the server's ``send``.
    """

    def __init__(
        self,
        app: ASGIApp,
        ledger: Ledger,
        *,
        abort: Callable[[Send], None] | None = None,
        go_away: Callable[[Send], None] | None = None,
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._abort = abort
        self._go_away = go_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ledger.draining:
            if (answer := await draining.answer_of_a_session(scope, receive)) is None:
                await refuse_for_shutdown(send)
                return
            receive = answer
        exchange = self._ledger.open(f"{scope['method']} {scope['path'][:100]!r}")
        exchange.task = asyncio.current_task()
        wire = _HTTPWire(exchange, receive, send)

        async def refuse() -> None:
            if not await wire.fail(503, "The server is shutting down.\n"):
                self._break_off(send)

        exchange.answer_instead = refuse
        token = current_exchange.set(exchange)
        try:
            await self._app({**scope, _EXCHANGE: exchange}, wire.receive, wire.send)
            await wire.complete()
        except asyncio.CancelledError:
            if not self._ledger.draining:
                raise
            await refuse()
        except Exception:
            logger.exception("%s %r raised an exception.", scope["method"], scope["path"])
            if not await wire.fail(500, "Internal Server Error\n"):
                self._break_off(send)
        finally:
            current_exchange.reset(token)
            exchange.close()

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ledger.draining:
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})
            return
        exchange = self._ledger.open(f"WebSocket {scope['path'][:100]!r}", standing=True)
        exchange.task = asyncio.current_task()
        wire = _EndableWire(exchange, receive, {"type": "websocket.disconnect", "code": 1001})
        try:
            await self._app({**scope, _EXCHANGE: exchange}, wire.receive, send)
        except asyncio.CancelledError:
            if not self._ledger.draining:
                raise
        finally:
            if exchange.ended and self._go_away is not None:
                self._go_away(send)
            exchange.close()

    def _break_off(self, send: Send) -> None:
        if self._abort is not None:
            self._abort(send)


class _EndableWire:
    """The receiving side of a connection that its exchange can end, as if the client had left."""

    def __init__(self, exchange: Exchange, receive: Receive, goodbye: Message) -> None:
        self._exchange = exchange
        self._receive = receive
        self._goodbye = goodbye

    async def receive(self) -> Message:
        if not self._exchange.ended:
            with anyio.CancelScope() as waiting:
                self._exchange.on_end = waiting.cancel
                return await self._receive()
        return dict(self._goodbye)


class _HTTPWire(_EndableWire):
    """Both sides of one HTTP request, remembering how far it got."""

    def __init__(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        super().__init__(exchange, receive, {"type": "http.disconnect"})
        self._send = send
        self._body_read = False
        self._client_left = False
        self._started = False
        self._finished = False
        self._streams_events = False

    async def receive(self) -> Message:
        if self._client_left:
            return {"type": "http.disconnect"}
        # While the body is read there is nothing to end yet: no scope for the ordinary request.
        message = await (super().receive() if self._body_read else self._receive())
        if message["type"] == "http.disconnect":
            self._client_left = not self._exchange.ended
        elif not message.get("more_body", False):
            self._body_read = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            await self._send(message)
            if _is_event_stream(message):
                self._streams_events = True
                await self._send({"type": "http.response.body", "body": b"", "more_body": True})
            return
        if message["type"] == "http.response.body":
            self._finished = not message.get("more_body", False)
        await self._send(message)

    async def complete(self) -> None:
        """End what the application has left open: a stream that was ended, a request never answered."""
        if self._client_left or self._finished:
            return
        if not self._started and not self._exchange.ended:
            logger.error("%s was not answered by the application.", self._exchange.what)
        await self.fail(503 if self._exchange.ended else 500, "No response.\n")

    async def fail(self, status: int, text: str) -> bool:
        """Answer with an error if there is still room for one; False for a response that has to be broken off."""
        if self._client_left or self._finished:
            return True
        if not self._started:
            await respond(self.send, status, text)
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
