"""django-mcpz, as its documentation sets it up."""

import msgspec
from django.core.asgi import get_asgi_application
from django.urls import path
from django_mcpz.server import MCPServer, public

from bench.peers_projects import tools

server = MCPServer(name="bench", version="1", auth=public)


class Echo(msgspec.Struct):
    text: str


class Wait(msgspec.Struct):
    seconds: float


@server.tool(description="Returns its text.")
def echo(request, params: Echo) -> str:
    return tools.echo(params.text)


@server.tool(description="Waits.")
def wait(request, params: Wait) -> str:
    return tools.wait(params.seconds)


urlpatterns = [path("mcp", server)]
application = get_asgi_application()
