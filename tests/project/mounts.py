"""Every way of mounting handlers, in one router."""

import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.urls import path, re_path
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcp_serving import InMemoryEventStore, StreamableHTTPHandler
from tests.project import asgi, mcp


class OneToken:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="client", scopes=[]) if token == "right" else None


guarded_server = MCPServer(
    "guarded-server",
    token_verifier=OneToken(),
    auth=AuthSettings(
        issuer_url=AnyHttpUrl("https://issuer.example"),
        resource_server_url=AnyHttpUrl("http://testserver/guarded/mcp"),
        validate_token_resource=False,
    ),
)
guarded_server.add_tool(mcp.echo)

routed_server = MCPServer("routed-server")
routed_server.add_tool(mcp.echo)


@routed_server.custom_route("/items/{number}", methods=["GET"])
async def item(request: Request) -> Response:
    return PlainTextResponse(f"item {request.path_params['number']}")


stateful = StreamableHTTPHandler(mcp.server)
as_json = StreamableHTTPHandler(mcp.server, json_response=True)
stateless = StreamableHTTPHandler(mcp.server, stateless_http=True, json_response=True)
resumable = StreamableHTTPHandler(mcp.server, event_store=InMemoryEventStore())
other = StreamableHTTPHandler(mcp.make_server())
guarded = StreamableHTTPHandler(guarded_server)
routed = StreamableHTTPHandler(routed_server)


def plain_middleware(app: Any) -> Any:
    """ASGI middleware that knows nothing of Channels, and passes on callables of its own."""

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def wrapped_receive() -> Any:
            return await receive()

        async def wrapped_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"x-middleware", b"was here")]}
            await send(message)

        await app(dict(scope), wrapped_receive, wrapped_send)

    return middleware


wrapped: Any = plain_middleware(StreamableHTTPHandler(mcp.server))
broken_middleware: Any = plain_middleware(asgi.broken)

daphne_server: Server | None = None


async def connections(scope: Any, receive: Any, send: Any) -> None:
    """How many connections Daphne has in its books."""
    count = len(daphne_server.connections) if daphne_server is not None else -1
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(count).encode()})


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *stateful.urlpatterns("mcp"),
                *as_json.urlpatterns("json/mcp"),
                *stateless.urlpatterns("stateless/mcp"),
                *resumable.urlpatterns("resumable/mcp"),
                *other.urlpatterns("other"),
                *guarded.urlpatterns("guarded/mcp"),
                re_path(r"^wrapped/mcp/?\Z", wrapped),
                path("nested/", URLRouter([*routed.urlpatterns("mcp")])),  # type: ignore[arg-type]
                path("broken/", asgi.broken),  # type: ignore[arg-type]
                path("broken-middleware/", broken_middleware),
                path("connections/", connections),  # type: ignore[arg-type]
                path("silent/", asgi.silent),  # type: ignore[arg-type]
                re_path(r"", asgi.django_asgi_app),
            ]
        ),
        "lifespan": stateful.lifespan,
    }
)


def build_daphne() -> Server:
    global daphne_server
    options = json.loads(os.environ.get("TEST_DAPHNE", "{}"))
    daphne_server = Server(application, json.loads(os.environ["TEST_ENDPOINTS"]), **options)
    return daphne_server
