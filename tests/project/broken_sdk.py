"""A server with a tool that breaks the SDK."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

server = MCPServer("broken")


@server.tool()
async def break_sdk() -> str:
    """From now on, the SDK fails when it takes in a message."""

    async def fail(*_: Any) -> None:
        raise RuntimeError("the SDK is broken")

    JSONRPCDispatcher._dispatch = fail  # type: ignore[method-assign]
    return "broken"
