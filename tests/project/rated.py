"""A server whose tools have rates."""

from mcp_serving import MCPServer

server = MCPServer("rated")


@server.read_tool()
async def free() -> str:
    return "served"


@server.read_tool(rate="3/h")
async def rated() -> str:
    return "served"
