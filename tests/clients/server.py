"""What every client does something with. `label` tells the clients apart in what the server notes."""

import asyncio

from mcp.server.mcpserver import Context
from pydantic import BaseModel

from mcp_serving import MCPServer
from tests.project.notes import note

server = MCPServer("clients-server", version="1.0")


class Sum(BaseModel):
    total: int


@server.read_tool()
def add(a: int, b: int) -> Sum:
    """Has a structured result."""
    return Sum(total=a + b)


@server.tool()
async def count(ctx: Context, to: int) -> str:
    """Reports progress."""
    for step in range(1, to + 1):
        await ctx.report_progress(step, to, f"step {step}")
        # The TypeScript SDK's client drops progress that it reads from a pipe in one go with the result.
        await asyncio.sleep(0.05)
    return f"counted to {to}"


@server.write_tool(confirm="Delete order {number}?")
def delete_order(label: str, number: int) -> str:
    """Asks the user first."""
    note(f"{label}: order {number} deleted")
    return f"Order {number} is deleted."


@server.tool()
async def wait(ctx: Context, label: str) -> str:
    """Is there to be cancelled, once it has reported progress."""
    try:
        note(f"{label}: wait started")
        await ctx.report_progress(1, 2, "waiting")
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note(f"{label}: wait cancelled")
        raise
    return "waited"


@server.tool()
async def outlast(ctx: Context, label: str) -> str:
    """Is there to have its client's connection cut, once it has reported progress."""
    try:
        await ctx.report_progress(1, 2, "working")
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        note(f"{label}: outlast cancelled")
        raise
    return "outlasted"


@server.resource("test://greeting", mime_type="text/plain")
def greeting() -> str:
    return "Hello from a resource."


@server.prompt()
def greet(name: str) -> str:
    """A prompt with an argument."""
    return f"Say hello to {name}."
