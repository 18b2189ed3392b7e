"""A project whose middleware finds out the tenant of a request, in each place where a middleware can stand."""

import json
import os
from contextvars import ContextVar
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings")

from asgiref.compatibility import guarantee_single_callable
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

from django.urls import re_path
from django.utils import timezone, translation
from mcp.server.mcpserver import Context

from mcp_serving import MCPServer, StreamableHTTPHandler

tenant_name: ContextVar[str] = ContextVar("tenant_name", default="the default tenant")
server = MCPServer("tenants")


class Tenant:
    def __init__(self, name: str) -> None:
        self.name = name


@server.tool()
async def tenant(ctx: Context) -> str:
    """What a tool sees of its request's tenant."""
    scope = ctx.request_context.request.scope  # type: ignore[union-attr]
    seen = {
        "object": scope["tenant"].name if "tenant" in scope else None,
        "plain": scope.get("tenant_settings"),
        "url": scope.get("url_route", {}).get("kwargs"),
        "context": tenant_name.get(),
        "language": translation.get_language(),
        "time zone": timezone.get_current_timezone_name(),
    }
    return json.dumps(seen)


def with_tenant(app: Any) -> Any:
    app = guarantee_single_callable(app)  # as the middleware of OpenTelemetry does

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope["headers"])[b"x-tenant"].decode()
        tenant_name.set(name)
        await app({**scope, "tenant": Tenant(name)}, receive, send)

    return serve


def with_plain_settings(app: Any) -> Any:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        with translation.override("de"), timezone.override("Asia/Tokyo"):
            await app({**scope, "tenant_settings": {"seats": [1, 2.5, None, "ü"]}}, receive, send)

    return serve


inside, outside = StreamableHTTPHandler(server, public=True), StreamableHTTPHandler(server, public=True)
routes = [
    re_path(r"^(?P<url_tenant>\w+)/inside/", URLRouter(inside.urlpatterns("mcp", with_tenant))),  # type: ignore[arg-type]
    re_path(r"^(?P<url_tenant>\w+)/outside/", with_tenant(URLRouter(outside.urlpatterns("mcp")))),
]
application = ProtocolTypeRouter({"http": with_plain_settings(URLRouter(routes)), "lifespan": inside.lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
