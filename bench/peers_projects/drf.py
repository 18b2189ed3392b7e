"""djangorestframework-mcp-server, as its documentation sets it up."""

from django.core.asgi import get_asgi_application

application = get_asgi_application()

from django.urls import path
from rest_framework import serializers
from rest_framework_mcp import MCPServer
from rest_framework_mcp.auth.backends.allow_any_backend import AllowAnyBackend

from bench.peers_projects import tools

server = MCPServer(name="bench", auth_backend=AllowAnyBackend())


class Echo(serializers.Serializer):
    text = serializers.CharField()


class Wait(serializers.Serializer):
    seconds = serializers.FloatField()


# Without a transaction: the tool has no query.
@server.service_tool(name="echo", input_serializer=Echo, atomic=False)
def echo(*, data):
    return tools.echo(data["text"])


@server.service_tool(name="wait", input_serializer=Wait, atomic=False)
def wait(*, data):
    return tools.wait(data["seconds"])


urlpatterns = [path("mcp", server.async_urls)]
