from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.conformance.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app: Any = get_asgi_application()

from mcp_serving import InMemoryEventStore, StreamableHTTPHandler
from tests.conformance.everything import server

if TYPE_CHECKING:
    from daphne.server import Server

# The mode in which nothing is missing: sessions, SSE answers, and streams that can be resumed. The retry
# interval is short because the suite waits for as long as it is told to before it reconnects.
handler = StreamableHTTPHandler(server, public=True, event_store=InMemoryEventStore(), retry_interval=100)

application = ProtocolTypeRouter(
    {
        "http": URLRouter([*handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)]),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    from daphne.server import Server  # not at the top: uvicorn serves this module too

    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
