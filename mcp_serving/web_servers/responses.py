"""The answers that this package gives in place of an application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """An ASGI application that refuses a request with one line of plain text.

    Args:
        status: the HTTP status.
        text: the line that the client reads.
        reason: the log gets it; it names the setting to change. None where there is no setting to change.
        headers: response headers besides the content type and length.
    """

    status: int
    text: str
    reason: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.reason is not None:
            # The path as a literal: text of a client must not break the line or colour it.
            logger.warning("Refused a request for %.200r: %s.", scope["path"], self.reason)
        await self.response(scope, receive, send)

    @property
    def response(self) -> PlainTextResponse:
        """The response alone, for an application of Starlette."""
        # A new one each time: middleware adds headers to it.
        return PlainTextResponse(f"{self.text}\n", self.status, self.headers)


def is_event_stream(start: Message) -> bool:
    """Whether the response that this ASGI message starts consists of server-sent events."""
    for name, value in start.get("headers", ()):
        if value.startswith(b"text/event-stream") and name.lower() == b"content-type":
            return True
    return False


SHUTTING_DOWN = Refusal(503, "The server is shutting down.", headers={"retry-after": "1", "connection": "close"})
