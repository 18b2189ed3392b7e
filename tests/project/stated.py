"""A handler that says who may call."""

from channels.routing import ProtocolTypeRouter, URLRouter

from mcp_serving import StreamableHTTPHandler
from tests.project.mcp import server

handler = StreamableHTTPHandler(server, public=True)
application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp")), "lifespan": handler.lifespan})
