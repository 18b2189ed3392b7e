"""The server of telemetry.py over HTTP, with a span for each HTTP request, and the metrics for Prometheus."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_telemetry")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

from django.urls import re_path
from opentelemetry import propagate
from prometheus_client import make_asgi_app

from mcp_serving import StreamableHTTPHandler
from tests.project.callers import user_from_header
from tests.project.telemetry import server, tracer

handler = StreamableHTTPHandler(server, public=True)
as_route: Any = re_path


def traced(app: Any) -> Any:
    """As an instrumentation of ASGI does."""

    async def with_span(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        with tracer.start_as_current_span(f"HTTP {scope['method']}", context=propagate.extract(headers)):
            await app(scope, receive, send)

    return with_span


routes = URLRouter([*handler.urlpatterns("mcp"), as_route(r"^metrics$", make_asgi_app())])
application = ProtocolTypeRouter({"http": traced(user_from_header(routes)), "lifespan": handler.lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
