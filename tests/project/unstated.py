"""A handler that does not say who may call."""

import json
import os

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server

from mcp_serving import StreamableHTTPHandler
from tests.project.mcp import server

handler = StreamableHTTPHandler(server)
application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp")), "lifespan": handler.lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
