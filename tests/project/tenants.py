"""A server whose tools leave state on Django's connection: the tenant of django-tenants, an attribute, queries."""

from __future__ import annotations

from typing import Any, cast

from django.db import connection

from mcp_serving import MCPServer
from tests.project.things.models import Thing

server: MCPServer[Any] = MCPServer("tenants", max_threads=1)


@server.tool()
def enter(schema: str) -> list[str]:
    """Work for one tenant, as its code does that."""
    cast(Any, connection).set_schema(schema)
    cast(Any, connection).note = "left behind"
    return names()


@server.tool()
def names() -> list[str]:
    """The things that the next call sees: those of the public schema, if nothing is left behind."""
    return [getattr(connection, "note", "nothing"), *Thing.objects.values_list("name", flat=True)]


@server.tool()
def queries(count: int) -> int:
    """Make some queries, and count those that Django has recorded."""
    for _ in range(count):
        Thing.objects.exists()
    return len(connection.queries)
