"""The test project on a server with bounds, with applications beside it that read and write a lot."""

import hashlib
import json
import logging
import os
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from mcp_serving.daphne import Server
from tests.project import asgi
from tests.project.notes import note
from tests.project.pattern import pattern_of


async def digest(scope: Any, receive: Any, send: Any) -> None:
    """How long the body was, and its SHA-256."""
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            note("left within its body")
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode()
    length = (b"content-length", str(len(answer)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": answer})


async def pattern(scope: Any, receive: Any, send: Any) -> None:
    """A response of ?bytes=, at once."""
    body = pattern_of(int(scope["query_string"].removeprefix(b"bytes=")))
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})
    note("pattern sent")


class Echo(AsyncWebsocketConsumer):
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data=text_data)


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("digest/", digest),  # type: ignore[arg-type]
                path("pattern/", pattern),  # type: ignore[arg-type]
                re_path(r"", asgi.application),  # type: ignore[arg-type]
            ]
        ),
        "websocket": URLRouter([path("echo/", Echo.as_asgi())]),
    }
)


def build_daphne() -> Server:
    """On TEST_ENDPOINTS (JSON), with the options in TEST_DAPHNE (JSON)."""
    return Server(
        application,
        endpoints=json.loads(os.environ["TEST_ENDPOINTS"]),
        **json.loads(os.environ.get("TEST_DAPHNE", "{}")),
    )


if __name__ == "__main__":  # without runmcp, so without the guard
    logging.basicConfig(level=logging.INFO)  # Daphne logs the port
    build_daphne().run()
