"""What a call leaves on Django's connections, and that the next call in the same thread does not see it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import psycopg
import pytest
from mcp import Client

from tests.support.harness import DEADLINE, parameters
from tests.support.postgres import PostgreSQL

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def schemas(postgres: PostgreSQL) -> None:
    """The table of things once more, in the schema of a tenant."""
    with psycopg.connect(
        host="127.0.0.1", port=postgres.port, user="tests", dbname="project", autocommit=True
    ) as connection:
        connection.execute("CREATE SCHEMA tenant")
        connection.execute("CREATE TABLE tenant.things_thing (id bigserial PRIMARY KEY, name text NOT NULL)")
        connection.execute("INSERT INTO tenant.things_thing (name) VALUES ('of the tenant')")


def calls(postgres: PostgreSQL, *wanted: tuple[str, dict[str, object]], **options: object) -> list[Any]:
    env = postgres.env(**options)
    env["TEST_MCP_SERVING"] = json.dumps({"SERVER": "tests.project.tenants.server"})
    results: list[Any] = []

    async def run() -> None:
        with anyio.fail_after(2 * DEADLINE):
            async with Client(parameters("--transport", "stdio", **env)) as client:
                for tool, arguments in wanted:
                    result = await client.call_tool(tool, arguments)
                    assert result.structured_content is not None, result
                    results.append(result.structured_content["result"])

    anyio.run(run)
    return results


@pytest.mark.usefixtures("schemas")
def test_the_tenant_and_the_attributes_of_a_connection_do_not_reach_the_next_call(postgres: PostgreSQL) -> None:
    tenant = ("enter", {"schema": "tenant"})
    entered, after = calls(postgres, tenant, ("names", {}), ENGINE="django_tenants.postgresql_backend")
    assert entered == ["left behind", "of the tenant"]
    note, *names = after
    assert note == "nothing"
    assert "the one" in names
    assert "of the tenant" not in names


def test_the_list_of_queries_is_empty_at_the_start_of_each_call(postgres: PostgreSQL) -> None:
    many = ("queries", {"count": 20})
    one = ("queries", {"count": 1})
    assert calls(postgres, many, one) == [20, 1]
    assert calls(postgres, many, one, CONN_MAX_AGE=60) == [20, 1]
