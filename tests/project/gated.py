from channels.routing import ProtocolTypeRouter, URLRouter

from mcp_serving import MCPServer, StreamableHTTPHandler

server = MCPServer("gated-server")


@server.write_tool(confirm="Delete everything?")
def delete_everything() -> str:
    return "deleted"


handlers = {
    "stateless": StreamableHTTPHandler(server, stateless_http=True),
    "json": StreamableHTTPHandler(server, json_response=True),
    "both-generations": StreamableHTTPHandler(server),
}
patterns = [pattern for path, handler in handlers.items() for pattern in handler.urlpatterns(path)]
application = ProtocolTypeRouter({"http": URLRouter(patterns)})
