from mcp.server.mcpserver import Context

from mcp_serving import MCPServer, anotify_resource_updated, notify_resource_updated

server = MCPServer("changing")


@server.resource("changes://orders/{number}")
def order(number: str) -> str:
    return number


@server.tool()
async def tell(ctx: Context, uri: str) -> None:
    """In the SDK's own way."""
    await ctx.notify_resource_updated(uri)


@server.tool()
async def atell(uri: str) -> None:
    await anotify_resource_updated(uri)


@server.tool()
def tell_from_a_thread(uri: str) -> None:
    notify_resource_updated(uri)
