"""A server that asks for the tokens of mcp_serving.tokens, and for the scope "read"; and one that asks for none."""

import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application
from mcp.server.auth.middleware.auth_context import get_access_token

from mcp_serving import MCPServer, StreamableHTTPHandler, get_user
from mcp_serving.tokens import UserTokenVerifier

django_asgi_app: Any = get_asgi_application()


server = MCPServer("guarded")


@server.tool()
async def who() -> list[str | None]:
    """The principal: which token, which user; and who the Django user is."""
    token = get_access_token()
    assert token is not None
    return [token.client_id, token.subject, str(get_user())]


handlers = {
    "mcp": StreamableHTTPHandler(server, auth=UserTokenVerifier()),
    "read": StreamableHTTPHandler(server, auth=UserTokenVerifier(), required_scopes=["read"]),
}


def build_daphne() -> Server:
    routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
    application = ProtocolTypeRouter({"http": URLRouter(routes)})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
