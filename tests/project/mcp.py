import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

from tests.project.notes import note

failed: list[bool] = []


@asynccontextmanager
async def lifespan(_: MCPServer[Any]) -> AsyncIterator[dict[str, str]]:
    """Notes when it is entered and left; TEST_LIFESPAN makes it misbehave."""
    how = os.environ.get("TEST_LIFESPAN", "")
    if how == "slow start":
        note("lifespan starting")
        await anyio.sleep(60)
    if how == "fails once" and not failed:
        failed.append(True)
        note("lifespan failed")
        raise RuntimeError("the first start fails")
    if how == "fails":
        raise RuntimeError("every start fails")
    task = asyncio.current_task()
    note("lifespan entered")
    try:
        yield {"state": "shared"}
    finally:
        note("lifespan left" if asyncio.current_task() is task else "lifespan left in another task")
        if how == "cleanup raises":
            raise RuntimeError("the cleanup fails")
        if how == "cleanup hangs":
            try:
                await anyio.sleep(60)
            finally:
                note("cleanup cut")
        if how == "slow cleanup":
            await anyio.sleep(0.5)
            note("slow cleanup done")


server = MCPServer("test-server", version="2.0", lifespan=lifespan)


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
async def state(ctx: Context) -> str:
    """The value that the lifespan yielded."""
    return str(ctx.request_context.lifespan_context["state"])


@server.tool()
async def slow(seconds: float, name: str = "slow") -> str:
    note(f"{name} started")
    try:
        await anyio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"{name} cancelled")
        raise
    finally:
        note(f"{name} finally")
    note(f"{name} finished")
    return f"{name} finished"


@server.tool()
def block(seconds: float) -> str:
    """Holds a worker thread that nobody can cancel."""
    note("block started")
    time.sleep(seconds)
    note("block finished")
    return "block finished"


@server.tool()
async def count(ctx: Context, to: int, pause: float = 0.0) -> int:
    """Reports progress for each step."""
    for step in range(1, to + 1):
        await ctx.report_progress(step, to, f"step {step}")
        await anyio.sleep(pause)
    return to


class Answer(BaseModel):
    word: str


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks the client through the session: works where the server may send requests."""
    result = await ctx.elicit("Which word?", Answer)
    return result.data.word if result.action == "accept" else result.action


@server.tool()
async def ask_slowly(ctx: Context) -> str:
    """Asks a second after its first progress notification."""
    await ctx.report_progress(1, 2, "before")
    await anyio.sleep(1)
    answer = await ask(ctx)
    await ctx.report_progress(2, 2, "after")
    return answer


@server.tool()
def shout() -> str:
    """Everything that a tool can do to standard output, and one thing to standard input."""
    print("printed by the tool")
    print("printed by the tool, flushed", flush=True)
    sys.stdout.write("written without a flush")
    os.write(1, b"written to descriptor 1\n")
    handler = logging.StreamHandler(sys.stdout)
    noisy = logging.getLogger("noisy")
    noisy.addHandler(handler)
    noisy.warning("logged to stdout")
    noisy.removeHandler(handler)
    subprocess.run(["sh", "-c", "echo written by a child process"], check=True)
    child = subprocess.run(["cat"], capture_output=True, check=True, stdin=None)
    return f"the child read {len(child.stdout)} bytes"


@server.tool()
def fail() -> str:
    raise ValueError("the tool failed")


@server.tool()
def size(text: str) -> int:
    return len(text)


@server.tool()
def big(length: int) -> str:
    return "x" * length


@server.tool()
def surrogate() -> str:
    return "\ud800"


@server.resource("test://static")
def static() -> str:
    return "static text"


@server.prompt()
def hello(name: str) -> str:
    return f"Say hello to {name}."


empty = MCPServer("empty-server")


@asynccontextmanager
async def other_lifespan(_: MCPServer[Any]) -> AsyncIterator[None]:
    yield
    note("other lifespan left")


def make_server() -> MCPServer[Any]:
    made = MCPServer("made-server", lifespan=other_lifespan)
    made.add_tool(echo)
    return made


def make_nothing() -> MCPServer[Any]:
    raise KeyError("SHOP_URL")


not_a_server = "a string"


@server.tool()
async def collector_thresholds() -> str:
    return str([*gc.get_threshold()])


@server.tool()
async def immediate(text: str) -> str:
    """An echo without the hop to a worker thread."""
    return text


@server.tool()
async def big_at_once(length: int) -> str:
    return "x" * length


@server.tool()
async def surrogate_error() -> str:
    raise MCPError(-32000, "\ud800")


@server.tool()
async def ask_later(ctx: Context, seconds: float) -> str:
    note("ask_later started")
    await anyio.sleep(seconds)
    return await ask(ctx)


@server.tool()
async def flood(ctx: Context, megabytes: int) -> str:
    """Sends so much in progress notifications, 16 a megabyte."""
    note("flood started")
    try:
        for step in range(megabytes * 16):
            await ctx.report_progress(step, None, f"{step:08}" * 2**13)
    except BaseException:
        note("flood cancelled")
        raise
    note("flood finished")
    return "flood finished"


@server.tool()
async def process(name: str = "process", seconds: float = 0.0) -> str:
    """Which process runs it; each run is noted, so that it is seen if there are two."""
    note(f"{name} ran")
    await anyio.sleep(seconds)
    return str(os.getpid())


@server.tool()
async def complete(ctx: Context) -> str:
    """Asks the client's model, on the stream that the session has open."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Go on"))
    result = await ctx.session.create_message([message], max_tokens=10)
    return str(result.content.text)  # type: ignore[union-attr]


@server.tool()
async def announce(ctx: Context) -> str:
    """Tells the session's stream that there are other tools."""
    await ctx.session.send_tool_list_changed()
    return "announced"
