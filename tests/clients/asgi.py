from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.clients.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import re_path
from starlette.middleware.cors import CORSMiddleware

django_asgi_app: Any = get_asgi_application()

from mcp_serving import InMemoryEventStore, StreamableHTTPHandler
from tests.clients.server import server

if TYPE_CHECKING:
    from daphne.server import Server

# With an event store, a client up to 2025-11-25 gets the rest of a stream that was cut.
handler = StreamableHTTPHandler(server, public=True, event_store=InMemoryEventStore(), retry_interval=100)

# As docs/cors.md has it.
with_cors: Any = partial(
    CORSMiddleware,
    allow_origins=settings.CSRF_TRUSTED_ORIGINS,
    allow_methods=["GET", "POST", "DELETE"],
    allow_headers=["*"],
    expose_headers=["Mcp-Session-Id", "MCP-Protocol-Version", "WWW-Authenticate", "Retry-After"],
)

application = ProtocolTypeRouter(
    {
        "http": URLRouter([*handler.urlpatterns("mcp", with_cors), re_path(r"", django_asgi_app)]),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    from daphne.server import Server

    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
