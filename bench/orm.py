"""The CPU time of a sync tool with one query, against a Django view with the same query.

    python -m bench.orm

One Daphne process serves both, with a private PostgreSQL. One client measures them in turns.
"""

from __future__ import annotations

import asyncio
import json

from bench.clients import Connection, Load, get, post, rounds_of, rows_of
from bench.measuring import Effort, Promise, Results
from bench.servers import typed
from tests.support.harness import MANAGE, call, serving_http
from tests.support.postgres import PostgreSQL, running_postgresql

ROUNDS = 25
CALLS = 64
AT_ONCE = (1, 16)
MAX_AGES = (0, 60)
PROMISE = Promise(1.0, at_most=True)
REQUESTS = {"ours": post(call(1, "tool", modern=True)), "theirs": get("/view/")}


def measure(effort: Effort) -> Results:
    results = Results(commands=[typed([*MANAGE, "runmcp", "--transport", "http"])])
    with running_postgresql() as postgres:
        for max_age in MAX_AGES:
            results.add(_measure(postgres, max_age, effort))
    return results


def _measure(postgres: PostgreSQL, max_age: int, effort: Effort) -> Results:
    env = postgres.env(CONN_MAX_AGE=max_age) | {
        "DJANGO_SETTINGS_MODULE": "bench.orm_settings",
        "TEST_MCP_SERVING": json.dumps(
            {"SERVER": "bench.orm_project.server", "HTTP_SERVER": "bench.orm_project.build_daphne"}
        ),
        "TEST_DEBUG": "0",  # with DEBUG, Django stores every query
    }
    with serving_http(env=env) as (process, address):
        return asyncio.run(_compare(process.pid, address, max_age, effort))


async def _compare(pid: int, address: str, max_age: int, effort: Effort) -> Results:
    results = Results()
    for at_once in AT_ONCE:
        connections = [await Connection.open(address) for _ in range(at_once)]
        loads = {side: Load([(each, REQUESTS[side]) for each in connections], b"the one", [pid]) for side in REQUESTS}
        rounds = await rounds_of(loads, CALLS, ROUNDS, effort, at_once)
        for connection in connections:
            connection.close()
        case = f"CONN_MAX_AGE={max_age}, {at_once} at once"
        results.rows += rows_of("sync tool, one query", case, rounds, promise=PROMISE)
    return results


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
