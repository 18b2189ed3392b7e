import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_changes")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application
from django.urls import re_path
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.subscriptions import ListenHandler

django_asgi_app: Any = get_asgi_application()

from mcp_serving import ChannelLayerBus, StreamableHTTPHandler
from tests.project.changes.mcp import server

handler = StreamableHTTPHandler(server, public=True)
stateless = StreamableHTTPHandler(server, public=True, stateless_http=True)
of_the_sdk = StreamableHTTPHandler(
    LowLevelServer("of-the-sdk", on_subscriptions_listen=ListenHandler(ChannelLayerBus("of-the-sdk"))), public=True
)

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *handler.urlpatterns("mcp"),
                *stateless.urlpatterns("stateless"),
                *of_the_sdk.urlpatterns("sdk"),
                re_path(r"", django_asgi_app),
            ]
        ),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
