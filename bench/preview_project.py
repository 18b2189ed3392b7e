"""The same write tool with and without a preview."""

import json
import os
from typing import Any

from mcp_serving import MCPServer, StreamableHTTPHandler
from tests.project.stock.models import Product

server = MCPServer("bench")


def change() -> str:
    product = Product.objects.get(name="Chair")
    product.stock += 1
    product.save()
    return "changed"


server.write_tool("with_preview", confirm="Change?", preview=True)(change)
server.write_tool("without_preview", confirm="Change?")(change)


def build_daphne() -> Any:
    from channels.routing import ProtocolTypeRouter, URLRouter
    from daphne.server import Server

    handler = StreamableHTTPHandler(server, public=True)
    application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp"))})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
