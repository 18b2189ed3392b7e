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
from mcp.server.mcpserver import Context
from mcp_types import Completion

from mcp_serving import MCPServer, StreamableHTTPHandler, get_user
from mcp_serving.oauth import OAuth
from mcp_serving.tokens import UserTokenVerifier

server = MCPServer("notes")


@server.tool()
def who() -> str:
    """The Django user, and the client in whose name it calls."""
    token = get_access_token()
    return f"{get_user()} through {token.client_id if token else 'nothing'}"


@server.read_tool(scopes=["notes:read"])
def list_notes() -> list[str]:
    return ["milk", "bread"]


@server.write_tool(confirm="Delete {note}?", scopes=["notes:read", "notes:write"])
def delete_note(note: str) -> str:
    return f"{note} is deleted"


@server.tool(scopes=["notes:write"], permission="auth.view_user")
def hidden() -> str:
    return "seen"


@server.tool()
async def around(ctx: Context) -> str:
    """A tool that needs no scope and calls one that does."""
    result: Any = await server.call_tool("list_notes", {}, ctx)
    return str(result.content)


@server.resource("notes://all", scopes=["notes:read"])
def all_notes() -> str:
    return "milk, bread"


@server.resource("notes://{note}/text", scopes=["notes:write"])
def text(note: str) -> str:
    return note


@server.prompt(scopes=["notes:write"])
def tidy() -> str:
    return "Tidy up"


@server.completion()
def complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=["milk"])


handlers = {
    "mcp": StreamableHTTPHandler(server, auth=[UserTokenVerifier(), OAuth()], login_required=True),
    "reading": StreamableHTTPHandler(server, auth=OAuth(), required_scopes=["notes:read"]),
    "personal": StreamableHTTPHandler(server, auth=UserTokenVerifier()),
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
