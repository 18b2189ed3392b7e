"""Calls in sessions of several workers: at any worker, with sticky routing, and at the session's own worker.

    python -m bench.relay

Each worker is a ``runmcp`` process. All share one Redis, and nginx is in front of them, as in production. Redis itself
counts its messages, commands and bytes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from statistics import median

from redis import Redis as RedisClient

from bench.clients import Connection, Load, Turn, open_session, post
from bench.measuring import Effort, Results, Row, cpu_seconds, in_turns, percentile, row
from bench.servers import typed
from tests.support.harness import MANAGE, call
from tests.support.private_redis import Redis, running_redis
from tests.support.workers import Worker, proxied, started

RUNS = [(1, "core"), (2, "core"), (2, "pubsub"), (4, "core"), (4, "pubsub")]
"""The numbers of workers, for each channel layer of channels_redis."""
QUICK_RUNS = [(2, "pubsub")]
ROUNDS = 7
REQUESTS = 240
AT_ONCE = 16
KEPT = 32
"""Idle connections that nginx keeps to the workers."""
CLIENT = "X-Client"
"""The key of sticky routing. The session id does not work: the request that opens a session has none yet."""
WAYS = {
    "round robin": "any worker, through nginx",
    "sticky": "the same worker each time, through nginx",
    "local": "the session's own worker, directly",
    "relayed": "another worker, directly: each call is relayed",
}
ENVIRONMENT = {
    "TEST_DEBUG": "0",
    "BENCH_CLASS": "ours",
    "TEST_MCP_SERVING": json.dumps({"SERVER": "bench.mounted.server", "HTTP_SERVER": "bench.mounted.build_daphne"}),
}


def measure(effort: Effort) -> Results:
    results = Results(commands=[typed([*MANAGE, "runmcp", "--transport", "http"])])
    rates: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    with running_redis() as redis:
        for number, layer in QUICK_RUNS if effort.quick else RUNS:
            with (
                started("runmcp", number, redis, "bench.mounted", layer=layer, env=ENVIRONMENT) as workers,
                ExitStack() as stack,
            ):
                addresses = [worker.address for worker in workers]
                proxies = {
                    "round robin": stack.enter_context(proxied(addresses, keep=KEPT)),
                    "sticky": stack.enter_context(
                        proxied(addresses, keep=KEPT, balance=f"hash $http_{CLIENT.lower().replace('-', '_')};")
                    ),
                }
                results.add(asyncio.run(_compare(workers, layer, proxies, redis, rates, effort)))
    results.series["relay"] = {way: found for way, found in rates.items() if found}
    return results


async def _compare(
    workers: list[Worker],
    layer: str,
    proxies: dict[str, str],
    redis: Redis,
    rates: dict[str, dict[int, float]],
    effort: Effort,
) -> Results:
    number, case = len(workers), f"{len(workers)} worker{'' if len(workers) == 1 else f's, {layer}'}"
    loads = {way: await _load(way, workers, proxies, AT_ONCE) for way in WAYS if way != "relayed" or number > 1}
    rounds = await _rounds(loads, effort.number(REQUESTS), effort)
    if layer == "core" or effort.quick:
        for way in loads:
            rates[way][number] = median(each[way].rate for each in rounds)
    rows = [
        *_rows(f"{case}: round robin, against sticky", rounds, "round robin", "sticky"),
        *_rows(f"{case}: sticky, against directly", rounds, "sticky", "local"),
    ]
    if number > 1:
        rows += _rows(f"{case}: every call relayed, against local", rounds, "relayed", "local")
        calls = 4 * effort.number(REQUESTS)
        rows += await _costs(f"{case}: relayed, against local", loads["relayed"], loads["local"], calls, workers, redis)
    if number == 2:
        alone = {way: await _load(way, workers, proxies, 1) for way in ("relayed", "local")}
        case = f"one call at a time, {layer}, relayed, against local"
        calls = effort.number(REQUESTS) // 2
        rows += _rows(case, await _rounds(alone, calls // 2, effort), "relayed", "local")
        rows += await _costs(case, alone["relayed"], alone["local"], calls, workers, redis)
    return Results(rows)


async def _load(way: str, workers: list[Worker], proxies: dict[str, str], at_once: int) -> Load:
    """Connections, each with a session: opened at the worker that gets its requests, or at another worker."""
    connections = []
    for index in range(at_once):
        owner = workers[index % len(workers)].address
        address = proxies.get(way, owner if way == "local" else workers[(index + 1) % len(workers)].address)
        connection = await Connection.open(address)
        named = {CLIENT: f"client {index}"}
        opening = connection if way == "sticky" else await Connection.open(owner)
        session = await open_session(opening, named)
        connections.append((connection, post(call(1, "echo", text="round trip"), session, headers=named)))
    return Load(connections, b"round trip")


async def _rounds(loads: dict[str, Load], requests: int, effort: Effort) -> list[dict[str, Turn]]:
    for load in loads.values():
        await load.turn(max(AT_ONCE, requests // 2))  # warm-up
    return [
        {way: await loads[way].turn(max(AT_ONCE, requests)) for way in in_turns(loads, round_number)}
        for round_number in range(effort.rounds(ROUNDS))
    ]


def _rows(case: str, rounds: list[dict[str, Turn]], ours: str, theirs: str) -> list[Row]:
    rates = [{way: turn.rate for way, turn in each.items()} for each in rounds]
    found = [row("relay", case, rates, "calls/s", ours=ours, theirs=theirs)]
    for percent in (50, 99):
        late = [{way: percentile(turn.latencies, percent) * 1000 for way, turn in each.items()} for each in rounds]
        found.append(row("relay", f"{case}, p{percent}", late, "ms", ours=ours, theirs=theirs))
    return found


async def _costs(case: str, relayed: Load, local: Load, calls: int, workers: list[Worker], redis: Redis) -> list[Row]:
    """The work of Redis for a relayed call, as Redis counts it, and the CPU time, against a local call."""
    costs: dict[str, dict[str, float]] = {}
    with redis.client() as client:
        for way, load in (("relayed", relayed), ("local", local)):
            before = _counted(workers, client)
            number = len((await load.turn(calls)).latencies)
            costs[way] = {what: (count - before[what]) / number for what, count in _counted(workers, client).items()}
    ours, theirs = costs["relayed"], costs["local"]
    return [
        Row(
            "relay",
            f"{case}: each call",
            ours[what] / theirs[what] if what == _CPU else None,
            ours[what],
            theirs[what],
            what,
        )
        for what in ours
    ]


_CPU = "ms of CPU"


def _counted(workers: list[Worker], client: RedisClient) -> dict[str, float]:
    """Messages of either layer, commands, and bytes in and out, so far; the time of all workers and Redis."""
    stats, commands, cpu = client.info("stats"), client.info("commandstats"), client.info("cpu")
    seconds = sum(cpu_seconds(worker.process.pid) for worker in workers) + cpu["used_cpu_user"] + cpu["used_cpu_sys"]
    return {
        "messages": sum(commands.get(name, {}).get("calls", 0) for name in ("cmdstat_zcount", "cmdstat_publish")),
        "commands": stats["total_commands_processed"],
        "bytes": stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
        _CPU: seconds * 1000,
    }


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
