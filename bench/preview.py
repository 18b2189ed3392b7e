"""The CPU time of the server for a write tool that its user confirms, with a preview and without.

    python -m bench.preview

One Daphne process serves both tools, with a private PostgreSQL. The SDK's client calls them in turns.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from typing import Any

from mcp import Client
from mcp_types import ElicitResult

from bench.measuring import Effort, Results, cpu_seconds, in_turns, row
from bench.servers import typed
from tests.support.harness import MANAGE, ROOT, environment, serving_http
from tests.support.postgres import PostgreSQL, running_postgresql

ROUNDS = 11
CALLS = 40
SEED = "from tests.project.stock.models import Product; Product.objects.create(name='Chair')"


def measure(effort: Effort) -> Results:
    results = Results(commands=[typed([*MANAGE, "runmcp", "--transport", "http"])])
    with running_postgresql() as postgres:
        env = _prepared(postgres)
        with serving_http(env=env) as (process, address):
            results.add(asyncio.run(_compare(process.pid, f"{address}/mcp", effort)))
    return results


def _prepared(postgres: PostgreSQL) -> dict[str, str]:
    databases = postgres.fresh_databases("default", "archive")
    for database in databases.values():
        database["CONN_MAX_AGE"] = 60
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_preview",
        "TEST_DATABASES": json.dumps(databases),
        "TEST_MAIL": tempfile.gettempdir(),
        "TEST_MCP_SERVING": json.dumps(
            {"SERVER": "bench.preview_project.server", "HTTP_SERVER": "bench.preview_project.build_daphne"}
        ),
        "TEST_DEBUG": "0",  # with DEBUG, Django stores every query
    }
    for command in (["migrate", "--run-syncdb", "--verbosity", "0"], ["shell", "--command", SEED]):
        subprocess.run([*MANAGE, *command], env=environment(**env), cwd=ROOT, check=True, capture_output=True)
    return env


async def accept(*_: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


async def _compare(pid: int, address: str, effort: Effort) -> Results:
    calls = effort.number(CALLS)
    sides = {"ours": "with_preview", "theirs": "without_preview"}
    async with Client(address, mode="auto", elicitation_callback=accept) as client:

        async def turn(tool: str) -> float:
            before = cpu_seconds(pid)
            for _ in range(calls):
                result = await client.call_tool(tool, {})
                assert not result.is_error, result.content
            return (cpu_seconds(pid) - before) / calls * 1000

        for tool in sides.values():
            await turn(tool)  # warm-up
        rounds = [
            {side: await turn(sides[side]) for side in in_turns(sides, number)}
            for number in range(effort.rounds(ROUNDS))
        ]
    return Results([row("write tool, confirmed", "with a preview, against without", rounds, "ms of CPU")])


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
