"""Declarations with mistakes with which a server runs, and tools that need the database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from django.contrib.auth.models import User

from mcp_serving import MCPServer

LONG = "count_" + 59 * "x"

server = MCPServer("mistakes")


def number_of_users() -> int:
    return User.objects.count()


@asynccontextmanager
async def lifespan(_: MCPServer) -> AsyncIterator[None]:
    await User.objects.acount()
    yield


with_a_lifespan = MCPServer("lifespan", lifespan=lifespan)


@server.read_tool(permission="auth.veiw_user")
def hidden() -> int:
    return number_of_users()


@server.read_tool(LONG, permission="auth.view_user")
def long() -> int:
    return number_of_users()


@server.read_tool()
def count() -> int:
    return number_of_users()


@server.read_tool()
async def count_async() -> int:
    return await User.objects.acount()


@server.read_tool()
def broken_query() -> int:
    return User.objects.extra(where=["nothing = 1"]).count()


@server.write_tool(confirm=lambda: f"Are there {number_of_users()}?")
def write() -> int:
    return 1


@server.resource("users://count")
def users() -> str:
    return str(number_of_users())


@server.prompt()
def ask() -> str:
    return str(number_of_users())
