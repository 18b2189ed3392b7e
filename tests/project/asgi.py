import asyncio
import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings")

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

django_asgi_app: Any = get_asgi_application()

from mcp_serving import StreamableHTTPHandler
from tests.project import mcp
from tests.project.notes import note

handler = StreamableHTTPHandler(mcp.server, **json.loads(os.environ.get("TEST_HANDLER", "{}")))
second = StreamableHTTPHandler(mcp.server, stateless_http=True, json_response=True)
other = StreamableHTTPHandler(mcp.make_server())


class Chat(AsyncWebsocketConsumer):
    async def disconnect(self, code: int) -> None:
        note(f"websocket disconnected with {code}")
        await asyncio.sleep(0.3)
        note("websocket cleaned up")


async def broken(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("the application broke")


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Returns without an answer."""


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *handler.urlpatterns("mcp"),
                *second.urlpatterns("second/mcp"),
                *other.urlpatterns("/other/"),
                path("broken/", broken),  # type: ignore[arg-type]
                path("silent/", silent),  # type: ignore[arg-type]
                re_path(r"", django_asgi_app),
            ]
        ),
        "websocket": URLRouter([path("chat/", Chat.as_asgi())]),
        "lifespan": handler.lifespan,
    }
)
