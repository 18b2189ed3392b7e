"""A server of ours: gated tools, users, permissions."""

import functools
import time
from typing import Annotated, Any

import anyio
from django.contrib.auth.models import User
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Resolve
from pydantic import Field

from mcp_serving import MCPServer, get_user
from tests.project.notes import note

server = MCPServer("shop")


# Gated


@server.write_tool(confirm="Cancel order {number}?")
def cancel(number: Annotated[int, Field(ge=1)]) -> str:
    note(f"cancelled {number}")
    return f"order {number} is cancelled"


def how_many(number: int) -> str:
    if number == 404:
        raise ToolError("There is no order 404.")
    return f"Refund order {number}, says {get_user()} of {User.objects.count()}?"


@server.write_tool(confirm=how_many)
def refund(number: int, reason: str = "none") -> str:
    note(f"refunded {number}")
    return f"order {number} is refunded: {reason}"


async def which(number: int) -> str:
    return f"Ship order {number}, says {get_user()} of {await User.objects.acount()}?"


@server.write_tool(confirm=which)
async def ship(number: int) -> str:
    note(f"shipped {number}")
    return f"order {number} is shipped for {get_user()}"


# Users


@server.read_tool()
def who() -> str:
    return str(get_user())


@server.read_tool()
async def awho() -> str:
    return str(get_user())


def caller() -> str:
    return str(get_user())


async def acaller(first: Annotated[str, Resolve(caller)]) -> str:
    return f"{first} {get_user()}"


@server.read_tool()
def resolved(who: Annotated[str, Resolve(acaller)]) -> str:
    return who


@server.read_tool()
def slow_who(seconds: float) -> list[str]:
    before = str(get_user())
    time.sleep(seconds)
    return [before, str(get_user())]


@server.read_tool()
async def slow_awho(seconds: float) -> list[str]:
    before = str(get_user())
    await anyio.sleep(seconds)
    return [before, str(get_user())]


@server.resource("user://me")
def me() -> str:
    return str(get_user())


@server.resource("user://me/{tag}")
async def me_tagged(tag: str) -> str:
    return f"{get_user()} {tag}"


@server.prompt()
def greet() -> str:
    return f"Greet {get_user()}."


# Permissions

VIEW = "auth.view_user"
hidden = functools.partial(server.read_tool, description="Not for everybody.")


@hidden(permission=VIEW)
def one(text: str = "") -> str:
    return "one"


@hidden(permission=[VIEW, "auth.change_user"])
def several() -> str:
    return "several"


@hidden(permission=lambda user: user.username.startswith("clerk") or User.objects.filter(pk=user.pk, pk__lt=0).exists())
def by_function() -> str:
    return "by_function"


async def is_known(user: Any) -> bool:
    return await User.objects.filter(pk=user.pk).aexists()


@hidden(permission=is_known)
async def by_coroutine() -> str:
    return "by_coroutine"


Region = Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]


@hidden(permission=VIEW)
def regional(region: Region) -> str:
    return region


@server.read_tool()
def open_regional(region: Region) -> str:
    return region


@server.write_tool(permission=VIEW, confirm="Delete {name!r}?")
def delete(name: str) -> str:
    note(f"deleted {name}")
    return name


@server.resource("secret://one", permission=VIEW)
def secret() -> str:
    return "secret"


@server.resource("secret://number/{number}", permission=VIEW)
def secret_number(number: int) -> str:
    return f"secret {number}"


@server.prompt(permission=VIEW)
def secret_prompt(number: int) -> str:
    return f"secret {number}"
