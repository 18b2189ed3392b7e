"""A server that asks for the tokens of mcp_serving.tokens, and for the scope "read"; and one that asks for none."""

import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from mcp_serving import StreamableHTTPHandler
from mcp_serving.tokens import UserTokenVerifier

django_asgi_app: Any = get_asgi_application()


def guarded(path: str, scopes: list[str]) -> MCPServer:
    server = MCPServer(
        "guarded",
        token_verifier=UserTokenVerifier(),
        auth=AuthSettings(
            issuer_url=AnyHttpUrl("https://issuer.example"),
            resource_server_url=AnyHttpUrl(f"http://testserver/{path}"),
            validate_token_resource=False,
            required_scopes=scopes,
        ),
    )

    @server.tool()
    async def who() -> list[str | None]:
        """The principal: which token, which user."""
        token = get_access_token()
        assert token is not None
        return [token.client_id, token.subject]

    return server


server = guarded("mcp", [])
reading = guarded("read", ["read"])


def build_daphne() -> Server:
    handlers = [StreamableHTTPHandler(server).urlpatterns("mcp"), StreamableHTTPHandler(reading).urlpatterns("read")]
    routes = [route for patterns in handlers for route in patterns]
    application = ProtocolTypeRouter({"http": URLRouter(routes)})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
