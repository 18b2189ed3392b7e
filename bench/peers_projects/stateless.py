"""django-stateless-mcp, as its documentation sets it up."""

from django.core.asgi import get_asgi_application

application = get_asgi_application()

from django.urls import path
from django_stateless_mcp import mcp_view, request_state_security
from mcp.server.mcpserver import MCPServer

from bench.peers_projects import tools

server = MCPServer(name="bench", version="1", request_state_security=request_state_security(), log_level="WARNING")
server.tool()(tools.echo)
server.tool()(tools.wait)

urlpatterns = [path("mcp", mcp_view(server))]
