"""The server of ``bench.growth``: answers of any size, many tools, and a count of the SQL queries of the process."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import django

django.setup()

from channels.routing import ProtocolTypeRouter, URLRouter
from django.db.backends.signals import connection_created

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.tokens import UserTokenVerifier

LINE = "0123456789 abcdefghijklmnopqrs\n"
"""One line of a large result. JSON escapes one character of it."""
PERMISSIONS = 10
"""The tools that require a permission require one of so many."""
NUMBERS = json.loads(os.environ.get("BENCH_TOOLS", "[]"))
"""The numbers of tools: each has a server at ``/tools/NUMBER`` and one at ``/permissions/NUMBER``."""

server = MCPServer("growth")


@server.tool()
async def pid() -> str:
    """Which worker answers."""
    return f"pid {os.getpid()}"


@server.tool()
async def text(length: int) -> str:
    return (LINE * (length // len(LINE) + 1))[:length]


_queries = itertools.count()


def _count(execute: Any, *arguments: Any) -> Any:
    next(_queries)
    return execute(*arguments)


def _count_queries(connection: Any, **_: Any) -> None:
    if _count not in connection.execute_wrappers:
        connection.execute_wrappers.append(_count)


connection_created.connect(_count_queries)


@server.tool()
async def queries() -> str:
    """How many SQL queries all threads have made since the last call of this tool."""
    global _queries
    counted, _queries = _queries, itertools.count()
    return f"queries {next(counted)}"


def _with_tools(number: int, permissions: bool) -> MCPServer[Any]:
    """A server with so many tools."""
    many = MCPServer("growth")
    for index in range(number):
        permission = f"auth.use_{index % PERMISSIONS}" if permissions else None
        many.add_tool(_tool, f"tool_{index}", description=f"Looks up orders, number {index}.", permission=permission)
    return many


async def _tool(customer: str, status: str = "open", limit: int = 20) -> list[str]:
    return [f"{customer} {status}"] * limit


def seed() -> str:
    """Prepare an empty database; return the token of a user who has every permission that a tool requires."""
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command

    from mcp_serving.tokens.models import Token

    call_command("migrate", verbosity=0)
    user = User.objects.create_user("ann")
    kind = Permission.objects.get(codename="view_user").content_type
    for index in range(PERMISSIONS):
        codename = f"use_{index}"
        user.user_permissions.add(Permission.objects.create(codename=codename, name=codename, content_type=kind))
    return Token.objects.issue(user, expires=None)[1]


_handlers = {"mcp": StreamableHTTPHandler(server, public=True, json_response=True)}
for _path, _permissions in (("tools", False), ("permissions", True)):
    for _number in NUMBERS:
        _handlers[f"{_path}/{_number}"] = StreamableHTTPHandler(
            _with_tools(_number, _permissions), auth=UserTokenVerifier(), json_response=True
        )
application = ProtocolTypeRouter(
    {
        "http": URLRouter([route for path, handler in _handlers.items() for route in handler.urlpatterns(path)]),
        "lifespan": next(iter(_handlers.values())).lifespan,
    }
)
