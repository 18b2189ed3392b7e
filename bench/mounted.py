"""The same MCP server behind a StreamableHTTPHandler, in a Channels router next to Django."""

from __future__ import annotations

import json
import os
from typing import Any

import django

django.setup()

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

from bench import served
from mcp_serving import StreamableHTTPHandler

server = served.django_server() if os.environ.get("BENCH_CLASS") == "ours" else served.sdk_server()
handler = StreamableHTTPHandler(
    server, public=True, json_response=os.environ.get("BENCH_JSON") == "1", **served.OPTIONS
)
_django: Any = re_path(r"", get_asgi_application())  # type: ignore[arg-type]
application = ProtocolTypeRouter(
    {"http": URLRouter([*handler.urlpatterns("mcp"), _django]), "lifespan": handler.lifespan}
)


def build_daphne() -> Any:
    from daphne.server import Server

    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
