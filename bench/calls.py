"""CPU time of the server for a call: without a record, with the record alone, with the app that stores it, and with
OpenTelemetry.

    python -m bench.calls

One Daphne process serves a sync tool with one query, with a private PostgreSQL. The benchmark switches this process
from one side to the next. The turns are very short, because the speed of the machine changes all the time. A thread
delivers the records of several turns together: to the receiver, or to the database. So the CPU time of this thread is
measured separately, divided by the number of records, and added to each call. OpenTelemetry keeps each span and sends
none.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from bench.clients import Connection, part_of, post
from bench.measuring import Effort, Promise, Results, cpu_seconds, in_turns, row
from bench.servers import typed
from tests.support.harness import MANAGE, ROOT, call, environment, serving_http
from tests.support.postgres import PostgreSQL, running_postgresql

ROUNDS = 600
CALLS = 8
AT_ONCE = 4
SIDES = ("nothing", "record", "app", "otel")
DELIVERY_THREADS = {"record": "mcp-serving signals of finished calls", "app": "mcp-serving records of calls"}
PROMISE = Promise(1.03, at_most=True)
TOOL = post(call(1, "tool", modern=True))


def measure(effort: Effort) -> Results:
    results = Results(commands=[typed([*MANAGE, "runmcp", "--transport", "http"])])
    with running_postgresql() as postgres:
        env = _prepared(postgres)
        with serving_http(env=env) as (process, address):
            rounds = asyncio.run(_rounds(process.pid, address, effort))
    for side, name in (("record", "the record alone"), ("app", "the app that stores it")):
        case = f"{name}, against nothing"
        results.rows.append(row("calls", case, rounds, "ms of CPU", ours=side, theirs="nothing", promise=PROMISE))
    case = "OpenTelemetry with a span for each call, against nothing"
    results.rows.append(row("calls", case, rounds, "ms of CPU", ours="otel", theirs="nothing"))
    return results


def _prepared(postgres: PostgreSQL) -> dict[str, str]:
    databases = postgres.fresh_databases("default")
    databases["default"]["CONN_MAX_AGE"] = 60
    env = {
        "DJANGO_SETTINGS_MODULE": "bench.calls_settings",
        "TEST_DATABASES": json.dumps(databases),
        "TEST_SQLITE": "",
        "TEST_DEBUG": "0",  # with DEBUG, Django stores every query
    }
    seed = "from tests.project.things.models import Thing; Thing.objects.create(name='the one')"
    for command in (["migrate", "--run-syncdb", "--verbosity", "0"], ["shell", "--command", seed]):
        subprocess.run([*MANAGE, *command], env=environment(**env), cwd=ROOT, check=True, capture_output=True)
    return env


async def _rounds(pid: int, address: str, effort: Effort) -> list[dict[str, float]]:
    control = await Connection.open(address)
    connections = [await Connection.open(address) for _ in range(AT_ONCE)]

    async def asked(tool: str, **arguments: str) -> int:
        """The number that a tool of bench/calls_project.py answers."""
        return int(part_of(rb"answer: (\d+)", await control.exchange(post(call(1, tool, modern=True, **arguments)))))

    async def call_tool(connection: Connection) -> None:
        for _ in range(CALLS // AT_ONCE):
            part_of(b"(the one)", await connection.exchange(TOOL))

    async def turn(side: str) -> float:
        await asked("switch", side=side)
        before = seconds_without_delivery()
        await asyncio.gather(*map(call_tool, connections))
        return (seconds_without_delivery() - before) / CALLS * 1000

    def seconds_without_delivery() -> float:
        return cpu_seconds(pid) - sum(_thread_seconds(pid, thread) for thread in threads.values())

    threads: dict[str, int] = {}
    for side in SIDES:
        await turn(side)  # warm-up
    await asked("flush")
    threads |= {side: await asked("delivery_thread", name=name) for side, name in DELIVERY_THREADS.items()}
    delivered_before = {side: _thread_seconds(pid, thread) for side, thread in threads.items()}
    rounds = [{side: await turn(side) for side in in_turns(SIDES, number)} for number in range(effort.rounds(ROUNDS))]
    await asked("flush")
    records = CALLS * len(rounds)  # and a few more, of calls to ``switch``
    assert await asked("count") >= records, "not all calls of the app are stored"
    for side, thread in threads.items():
        each_call = (_thread_seconds(pid, thread) - delivered_before[side]) / records * 1000
        for each in rounds:
            each[side] += each_call
    for connection in (control, *connections):
        connection.close()
    return rounds


def _thread_seconds(pid: int, thread: int) -> float:
    """The CPU time so far of one thread of a process."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
