"""CPU time of the server for a call: without a record, with the record alone, with the app that stores it, and with
OpenTelemetry.

    python -m bench.calls

One Daphne process serves a sync tool with one query, with a private PostgreSQL. The benchmark switches this process
from one side to the next. The turns are short, because the speed of the machine changes within seconds. The app stores
its records once a second, also during the turns of other sides. So the CPU time of its thread is measured separately,
divided by the number of stored calls, and added to each call of the app. OpenTelemetry keeps each span and sends none.
"""

from __future__ import annotations

import asyncio
import json
import subprocess

from bench.clients import Connection, Load, part_of, post
from bench.measuring import Effort, Promise, Results, cpu_seconds, in_turns, row
from bench.servers import typed
from tests.support.harness import MANAGE, ROOT, call, environment, serving_http
from tests.support.postgres import PostgreSQL, running_postgresql

ROUNDS = 120
CALLS = 48
AT_ONCE = 4
SIDES = ("nothing", "record", "app", "otel")
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
    load = Load([(each, TOOL) for each in connections], b"the one", [pid])
    calls = effort.number(CALLS)

    async def turn(side: str) -> float:
        await control.exchange(post(call(1, "switch", modern=True, side=side)))
        writing = await _number(control, "writing")
        before = cpu_seconds(pid)
        await load.turn(calls)
        used = cpu_seconds(pid) - before
        return (used - (await _number(control, "writing") - writing)) / calls * 1000

    for side in SIDES:
        await control.exchange(post(call(1, "switch", modern=True, side=side)))
        await load.turn(calls)  # warm-up
    rounds = [{side: await turn(side) for side in in_turns(SIDES, number)} for number in range(effort.rounds(ROUNDS))]
    stored = await _number(control, "count")
    assert stored >= calls * (len(rounds) + 1), "not all calls of the app are stored"
    writing = await _number(control, "writing") / stored * 1000
    assert writing > 0, "the thread that stores calls has another name"
    for each in rounds:
        each["app"] += writing
    for connection in (control, *connections):
        connection.close()
    return rounds


async def _number(control: Connection, tool: str) -> float:
    """What a tool of bench/calls_project.py answers."""
    return float(part_of(rb"answer: ([\d.e-]+)", await control.exchange(post(call(1, tool, modern=True)))))


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
