import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.urls import path

from mcp_serving import StreamableHTTPHandler
from tests.project.hostile import server

handler = StreamableHTTPHandler(server)


async def exits(scope: Any, receive: Any, send: Any) -> None:
    raise SystemExit("the application wants to end the process")


application = ProtocolTypeRouter(
    {"http": URLRouter([*handler.urlpatterns("mcp"), path("exits/", exits)])}  # type: ignore[arg-type]
)


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
