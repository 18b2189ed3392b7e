"""The MCP server that is served over HTTP: the same tools, declared on a server of either class."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.mcpserver import Context, MCPServer

OPTIONS: dict[str, Any] = {"max_sessions": None, "session_idle_timeout": None}
"""For both sides: 5,000 sessions must stay open."""


def sdk_server() -> MCPServer[Any]:
    """A server of the SDK's own class, without a log line for each request."""
    return declared_on(MCPServer("bench", log_level="WARNING"))


def django_server() -> MCPServer[Any]:
    """A server of this package's class."""
    from mcp_serving import MCPServer as DjangoMCPServer

    return declared_on(DjangoMCPServer("bench"))


def declared_on(server: MCPServer[Any]) -> MCPServer[Any]:
    let_go = asyncio.Event()
    in_flight: list[None] = []

    @server.tool()
    async def echo(text: str) -> str:
        return text

    @server.tool()
    async def report(text: str, ctx: Context) -> str:
        """Reports progress, so that a client of 2026-07-28 gets an event stream too."""
        await ctx.report_progress(1, 2)
        return text

    @server.tool()
    async def wait() -> str:
        """A call in flight: until somebody calls ``release``."""
        in_flight.append(None)
        await let_go.wait()
        return "released"

    @server.tool()
    async def waiting() -> str:
        """How many calls of ``wait`` there are."""
        return str(len(in_flight))

    @server.tool()
    async def release(seconds: float) -> str:
        asyncio.get_running_loop().call_later(seconds, let_go.set)
        return "soon"

    @server.resource("bench://item")
    def item() -> str:
        """A resource that clients subscribe to."""
        return "an item"

    return server
