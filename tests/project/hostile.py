"""Tools, views and a lifespan that raise what is no Exception, or end what is not theirs."""

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.mcpserver import MCPServer

from tests.project import mcp
from tests.project.notes import note


class Panic(BaseException):
    pass


@asynccontextmanager
async def lifespan(server: MCPServer[Any]) -> AsyncIterator[dict[str, str]]:
    async with mcp.lifespan(server) as state:
        if os.environ.get("TEST_HOSTILE") != "dying lifespan":
            yield state
            return
        async with anyio.create_task_group() as group:
            group.start_soon(die)
            yield state


async def die() -> None:
    await anyio.sleep(0.3)
    raise RuntimeError("a task of the lifespan failed")


server = MCPServer("hostile-server", lifespan=lifespan)
server.add_tool(mcp.echo)
server.add_tool(mcp.slow)
server.add_tool(mcp.block)


@server.tool()
async def cancelled_task() -> str:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return "never"


@server.tool()
async def cancels_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)
    return "never"


@server.tool()
async def panics() -> str:
    raise Panic("no Exception")


@server.tool()
def exits() -> str:
    sys.exit("the tool wants to end the process")


@server.tool()
async def generator_exit() -> str:
    raise GeneratorExit


@server.tool()
def forks() -> str:
    """Starts a forked child and ends it with SIGTERM."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    child.terminate()
    child.join(10)
    note(f"the child ended with {child.exitcode}")
    return str(child.exitcode)
