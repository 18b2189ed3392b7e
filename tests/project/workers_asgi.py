"""What several workers serve: each of these handlers has sessions; who calls is said by a header."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_users")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

from mcp_serving import InMemoryEventStore, StreamableHTTPHandler
from tests.project import mcp, shop
from tests.project.callers import user_from_header

handler = StreamableHTTPHandler(mcp.server)
handlers = {
    "mcp": handler,
    "json": StreamableHTTPHandler(mcp.server, json_response=True),
    "resumable": StreamableHTTPHandler(mcp.server, event_store=InMemoryEventStore()),
    "shop": StreamableHTTPHandler(shop.server),
}
application = ProtocolTypeRouter(
    {
        "http": user_from_header(
            URLRouter([route for path, each in handlers.items() for route in each.urlpatterns(path)])
        ),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    options: dict[str, Any] = json.loads(os.environ.get("TEST_DAPHNE", "{}"))
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]), **options)
