"""FastMCP's application, mounted next to Django by hand."""

from django.core.asgi import get_asgi_application
from fastmcp import FastMCP

from bench.peers_projects import tools

server = FastMCP("bench")
server.tool(tools.echo)
server.tool(tools.wait)

mcp = server.http_app(path="/mcp", json_response=True)
django = get_asgi_application()
urlpatterns = []


async def application(scope, receive, send):
    served = mcp if scope["type"] == "lifespan" or scope["path"] == "/mcp" else django
    await served(scope, receive, send)
