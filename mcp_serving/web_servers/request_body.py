"""Reading the body of a request, and giving it to the next application."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive


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
