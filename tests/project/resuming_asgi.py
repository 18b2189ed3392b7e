"""A handler with each of the package's event stores."""

import json
import os

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server

from mcp_serving import InMemoryEventStore, RedisEventStore, StreamableHTTPHandler
from tests.project.mcp import server

handlers = {
    "memory": StreamableHTTPHandler(server, event_store=InMemoryEventStore()),
    "redis": StreamableHTTPHandler(server, event_store=RedisEventStore(os.environ["TEST_REDIS_URL"])),
}
routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
application = ProtocolTypeRouter({"http": URLRouter(routes)})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
