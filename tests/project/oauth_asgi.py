"""A site with two mounts that its users sign in to, one of which needs a scope."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_oauth")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app: Any = get_asgi_application()

from mcp.server.auth.middleware.auth_context import get_access_token

from mcp_serving import MCPServer, StreamableHTTPHandler, get_user
from mcp_serving.oauth import OAuth
from mcp_serving.tokens import UserTokenVerifier

server = MCPServer("notes")


@server.tool()
def who() -> str:
    """The Django user, and the client in whose name it calls."""
    token = get_access_token()
    return f"{get_user()} through {token.client_id if token else 'nothing'}"


handlers = {
    "mcp": StreamableHTTPHandler(server, auth=[UserTokenVerifier(), OAuth()], login_required=True),
    "reading": StreamableHTTPHandler(server, auth=OAuth(), required_scopes=["notes:read"]),
}
routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
application = ProtocolTypeRouter(
    {
        "http": AuthMiddlewareStack(URLRouter([*routes, re_path(r"", django_asgi_app)])),  # type: ignore[arg-type]
        "lifespan": handlers["mcp"].lifespan,
    }
)


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
