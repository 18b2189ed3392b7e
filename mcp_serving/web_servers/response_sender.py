"""``send`` of one HTTP request: with back-pressure, and with a response where the application has none."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from mcp_serving.shutdown.in_flight import Kind
from mcp_serving.web_servers import daphne
from mcp_serving.web_servers.responses import is_event_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Send

    from mcp_serving.shutdown.in_flight import InFlightRequest


class Progress(Enum):
    """How far the response of an HTTP request has got."""

    NOT_STARTED = auto()
    STARTED = auto()
    STREAMING_EVENTS = auto()
    """It has started, and consists of server-sent events: it is complete after any of them."""
    COMPLETE = auto()


class ResponseSender:
    """Sends the response of one HTTP request, and knows how far it has got."""

    __slots__ = ("_back_pressure", "_in_flight", "_method", "_send", "progress")

    def __init__(self, method: str, send: Send, in_flight: InFlightRequest) -> None:
        self.progress = Progress.NOT_STARTED
        self._method = method
        self._send = send
        self._in_flight = in_flight
        self._back_pressure = daphne.BackPressure.of(send, in_flight)

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            return self._start(message)
        if message["type"] == "http.response.body":
            return self._send_body(message)
        return self._send(message)

    def _start(self, message: Message) -> Awaitable[None]:
        if is_event_stream(message):
            return self._start_stream(message)
        self.progress = Progress.STARTED
        return self._send(message)

    async def _start_stream(self, message: Message) -> None:
        self.progress = Progress.STREAMING_EVENTS
        if self._method == "GET" and self._in_flight.kind is Kind.CALL:
            self._in_flight.become_stream()  # of a Django view: it may never end by itself
        await self._send(message)
        # Daphne sends the headers with the first part of the body, but an event may come much later.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    def _send_body(self, message: Message) -> Awaitable[None]:
        if self._back_pressure is not None:
            return self._send_with_back_pressure(self._back_pressure, message)
        if not message.get("more_body", False):
            self.progress = Progress.COMPLETE
        return self._send(message)

    async def _send_with_back_pressure(self, back_pressure: daphne.BackPressure, message: Message) -> None:
        body, more_body = message.get("body", b""), message.get("more_body", False)
        # Every piece waits for the client but the last one, which ends the response.
        waits = len(body) if more_body else max(len(body) - 1, 0) // daphne.PIECE * daphne.PIECE
        if (waits or more_body) and not await back_pressure.send(body[:waits]):
            return
        if more_body:
            return
        back_pressure.release()
        self.progress = Progress.COMPLETE
        await self._send({**message, "body": body[waits:]} if waits else message)

    async def fail(self, status: int, text: str) -> None:
        """Respond with an error; if the response has started, end a stream of events, and break off any other."""
        if self.progress is Progress.NOT_STARTED:
            await PlainTextResponse(f"{text}\n", status)({"type": "http"}, _nothing, self.send)
        elif self.progress is Progress.STREAMING_EVENTS:
            await self.send({"type": "http.response.body", "body": b""})
        elif self.progress is Progress.STARTED:
            daphne.abort(self._send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
