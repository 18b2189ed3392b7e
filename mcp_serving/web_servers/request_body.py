"""The body of a request: reading it, passing it on, and refusing one with too many JSON values."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_VALUES = 100_000
"""JSON values of a body, keys included. To parse and validate them takes a tenth of a second, while all others wait."""

MAX_OTHER_VALUES = 5_000
"""JSON values of a body outside of ``params.arguments``. The SDK validates them against unions of models. 20,000 values
in an answer to a question can have a million errors. These take a second, and hundreds of megabytes."""

BYTES_PER_VALUE = 40
"""If ``max_request_body_size`` is raised, a body may have one value for this many bytes of it."""

TOO_LARGE = Refusal(413, "The request body is too large.")


async def read_body(receive: Receive, max_size: float = math.inf) -> bytes | None:
    """The body of a request; None if it has more than ``max_size`` bytes, or if its client has left."""
    body = bytearray()
    more_body = True
    while more_body:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more_body = message.get("more_body", False)
        if len(body) > max_size:
            return None
    return bytes(body)


def with_body(body: bytes, receive: Receive) -> Receive:
    """``receive`` for a request whose body has been read already: it returns the body again, then goes on."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


class ValueLimitMiddleware:
    """An ASGI middleware that refuses a JSON body with too many values.

    A body within its limit of bytes can have millions of values. To parse, copy and validate them takes seconds, and
    hundreds of megabytes, in the event loop of all callers.

    Args:
        app: answers the other requests.
        max_body_size: bytes of a body. A larger one is refused, too.
    """

    def __init__(self, app: ASGIApp, max_body_size: int) -> None:
        self._app = app
        self._max_body_size = max_body_size
        self._max_values = max(MAX_VALUES, max_body_size // BYTES_PER_VALUE)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        length = _content_length(scope)
        # Each value and its separator take at least two bytes. So the body of most requests need not be read here.
        if scope["method"] != "POST" or length <= 2 * MAX_OTHER_VALUES:
            return self._app(scope, receive, send)
        if self._max_body_size < length < math.inf:
            return TOO_LARGE(scope, receive, send)
        return self._serve_with_body(scope, receive, send)

    async def _serve_with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, receive = await self._app_for_body(receive)
        await app(scope, receive, send)

    async def _app_for_body(self, receive: Receive) -> tuple[ASGIApp, Receive]:
        """The application that answers a request with this body, and its ``receive``; the body itself is not kept."""
        body = await read_body(receive, self._max_body_size)
        if body is None:  # or the client has left, and nobody reads the answer
            return TOO_LARGE, receive
        return self._refusal(body) or self._app, with_body(body, receive)

    def _refusal(self, body: bytes) -> Refusal | None:
        if not has_more_values(body, MAX_OTHER_VALUES):
            return None
        if has_more_values(body, self._max_values):
            text = f"body has more than {self._max_values} JSON values"
            limits = f"the limit is the larger of {MAX_VALUES} and max_request_body_size / {BYTES_PER_VALUE}"
            return Refusal(413, f"The {text}.", f"its {text}; {limits}")
        if _has_more_other_values(body, MAX_OTHER_VALUES):
            text = f"body has more than {MAX_OTHER_VALUES} JSON values outside of params.arguments, or is not JSON"
            return Refusal(413, f"The {text}.", f"its {text}")
        return None


def _has_more_other_values(body: bytes, limit: int) -> bool:
    """Whether a body has more than ``limit`` JSON values outside of ``params.arguments``; True if it is not JSON."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return True
    params = message.get("params") if isinstance(message, dict) else None
    if isinstance(params, dict):
        params.pop("arguments", None)
    count = 0
    left = [message]
    while left and count <= limit:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            count += len(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    return count > limit


def _content_length(scope: Scope) -> float:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return math.inf


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether a JSON text has more values and keys than ``limit``. It takes less than ten milliseconds for a megabyte.

    An empty list and an empty object count twice. Invalid JSON is counted at least up to its first error, because a
    parser may get that far.
    """
    if _separators(body) < limit:
        return False
    if b"\0" in body:  # UTF-16 or UTF-32, or not JSON: its strings cannot be told from the rest by bytes
        return True
    # Without escapes, a string is the text between two quotation marks.
    text = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if text.count(b'"') // 2 > limit:
        return True
    return _separators(b"".join(text.split(b'"')[::2])) >= limit


def _separators(text: bytes) -> int:
    """The number of commas, colons and opening brackets: one before each value and key but the first."""
    return sum(text.count(separator) for separator in (b",", b":", b"[", b"{"))
