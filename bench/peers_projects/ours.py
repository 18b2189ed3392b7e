"""mcp-serving, as its tutorial sets it up."""

import json
import os
from typing import Any

import django

django.setup()

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

from bench.peers_projects import tools
from mcp_serving import MCPServer, StreamableHTTPHandler

server = MCPServer("bench")
server.tool()(tools.echo)
server.tool()(tools.wait)

handler = StreamableHTTPHandler(server, public=True, json_response=True)
_django: Any = re_path(r"", get_asgi_application())
application = ProtocolTypeRouter(
    {"http": URLRouter([*handler.urlpatterns("mcp"), _django]), "lifespan": handler.lifespan}
)
urlpatterns: list[Any] = []


def build_daphne() -> Any:
    from daphne.server import Server

    return Server(application=application, endpoints=json.loads(os.environ["BENCH_ENDPOINTS"]))
