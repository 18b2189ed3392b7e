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

from bench.clients import Connection, Load, open_session, post, rounds_of, rows_of
from bench.measuring import Effort, Results, Row
from bench.servers import typed
from tests.support.harness import MANAGE, call
from tests.support.private_redis import Redis, running_redis
from tests.support.workers import Worker, proxied, started

RUNS = [(1, "core"), (2, "core"), (2, "pubsub"), (4, "core"), (4, "pubsub")]
"""The numbers of workers, for each channel layer of channels_redis."""
QUICK_RUNS = [(2, "pubsub")]
ROUNDS = 15
REQUESTS = 160
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
    with redis.client() as client:
        pids = [*(worker.process.pid for worker in workers), client.info("server")["process_id"]]
    loads = {way: await _load(way, workers, proxies, pids, AT_ONCE) for way in WAYS if way != "relayed" or number > 1}
    rounds = await rounds_of(loads, REQUESTS, ROUNDS, effort, AT_ONCE)
    if layer == "core" or effort.quick:
        for way in loads:
            rates[way][number] = median(each[way].rate for each in rounds)
    rows = [
        *rows_of("relay", f"{case}: round robin, against sticky", rounds, ours="round robin", theirs="sticky"),
        *rows_of("relay", f"{case}: sticky, against directly", rounds, ours="sticky", theirs="local"),
    ]
    if number > 1:
        rows += rows_of("relay", f"{case}: every call relayed, against local", rounds, ours="relayed", theirs="local")
        calls = 4 * effort.number(REQUESTS)
        rows += await _costs(f"{case}: relayed, against local", loads["relayed"], loads["local"], calls, redis)
    if number == 2:
        alone = {way: await _load(way, workers, proxies, pids, 1) for way in ("relayed", "local")}
        case = f"one call at a time, {layer}, relayed, against local"
        rounds = await rounds_of(alone, REQUESTS // 4, ROUNDS, effort)
        rows += rows_of("relay", case, rounds, ours="relayed", theirs="local")
        rows += await _costs(case, alone["relayed"], alone["local"], effort.number(REQUESTS) // 2, redis)
        for load in alone.values():
            load.close()
    for load in loads.values():
        load.close()
    return Results(rows)


async def _load(way: str, workers: list[Worker], proxies: dict[str, str], pids: list[int], at_once: int) -> Load:
    """Connections, each with a session: opened at the worker that gets its requests, or at another worker."""
    connections = []
    for index in range(at_once):
        owner = workers[index % len(workers)].address
        address = proxies.get(way, owner if way == "local" else workers[(index + 1) % len(workers)].address)
        connection = await Connection.open(address)
        named = {CLIENT: f"client {index}"}
        opening = connection if way == "sticky" else await Connection.open(owner)
        session = await open_session(opening, named)
        if opening is not connection:
            opening.close()
        connections.append((connection, post(call(1, "echo", text="round trip"), session, headers=named)))
    return Load(connections, b"round trip", pids)


async def _costs(case: str, relayed: Load, local: Load, calls: int, redis: Redis) -> list[Row]:
    """The work of Redis for a relayed call, as Redis counts it, against a local call."""
    costs: dict[str, dict[str, float]] = {}
    with redis.client() as client:
        for way, load in (("relayed", relayed), ("local", local)):
            before = _counted(client)
            number = len((await load.turn(calls)).latencies)
            costs[way] = {what: (count - before[what]) / number for what, count in _counted(client).items()}
    ours, theirs = costs["relayed"], costs["local"]
    return [Row("relay", f"{case}: each call", None, ours[what], theirs[what], what) for what in ours]


def _counted(client: RedisClient) -> dict[str, float]:
    """Messages of either layer, commands, and bytes in and out, so far."""
    stats, commands = client.info("stats"), client.info("commandstats")
    return {
        "messages": sum(commands.get(name, {}).get("calls", 0) for name in ("cmdstat_zcount", "cmdstat_publish")),
        "commands": stats["total_commands_processed"],
        "bytes": stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
    }


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
