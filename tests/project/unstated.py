"""A handler that does not say who may call."""

import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from mcp.server.mcpserver import MCPServer
from starlette.responses import PlainTextResponse

from mcp_serving import StreamableHTTPHandler

server = MCPServer("unstated")


@server.custom_route("/health", methods=["GET"])
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


handler = StreamableHTTPHandler(server)
application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp")), "lifespan": handler.lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
