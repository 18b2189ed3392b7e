"""A tool with a parameter that no client can send."""

from django.http import HttpRequest

from mcp_serving import MCPServer

server = MCPServer("no schema")


@server.read_tool()
def show(number: int, request: HttpRequest) -> str:
    return f"{number} {request.path}"
