"""Two handlers, of which one has a rate, for a server whose tools have rates."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

from mcp_serving import StreamableHTTPHandler
from tests.project.rated import server

handler = StreamableHTTPHandler(server, public=True, json_response=True, rate=os.environ.get("TEST_RATE", "8/h"))
by_tool = StreamableHTTPHandler(server, public=True, json_response=True)
application = ProtocolTypeRouter(
    {
        "http": URLRouter([*handler.urlpatterns("mcp"), *by_tool.urlpatterns("tool")]),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    options: dict[str, Any] = json.loads(os.environ.get("TEST_DAPHNE", "{}"))
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]), **options)
