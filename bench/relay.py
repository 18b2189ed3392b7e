"""Calls in sessions of several workers: any worker has them, against sticky routing, and against the worker's own.

    python -m bench.relay

Each worker is a ``runmcp`` of its own, all on one Redis; nginx stands in front as it would in production. What passes
through Redis is what Redis counts.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from statistics import median

from redis import Redis as RedisClient

from bench.clients import Connection, Load, Turn, open_session, post
from bench.measuring import Effort, Results, Row, in_turns, percentile, row
from bench.servers import typed
from tests.harness import MANAGE, call
from tests.private_redis import Redis, running_redis
from tests.workers import Worker, proxied, started

WORKERS = (1, 2, 4)
ROUNDS = 7
REQUESTS = 240
AT_ONCE = 16
KEPT = 32
"""Idle connections that nginx keeps to the workers."""
CLIENT = "X-Client"
"""What sticky routing goes by. Not the session's id: the request that opens a session has none yet."""
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
        for number in WORKERS:
            with started("runmcp", number, redis, "bench.mounted", env=ENVIRONMENT) as workers, ExitStack() as stack:
                addresses = [worker.address for worker in workers]
                proxies = {
                    "round robin": stack.enter_context(proxied(addresses, keep=KEPT)),
                    "sticky": stack.enter_context(
                        proxied(addresses, keep=KEPT, balance=f"hash $http_{CLIENT.lower().replace('-', '_')};")
                    ),
                }
                results.add(asyncio.run(_compare(workers, proxies, redis, rates, effort)))
    results.series["relay"] = {way: found for way, found in rates.items() if found}
    return results


async def _compare(
    workers: list[Worker], proxies: dict[str, str], redis: Redis, rates: dict[str, dict[int, float]], effort: Effort
) -> Results:
    number, case = len(workers), f"{len(workers)} worker{'' if len(workers) == 1 else 's'}"
    loads = {way: await _load(way, workers, proxies, AT_ONCE) for way in WAYS if way != "relayed" or number > 1}
    rounds = await _rounds(loads, effort.number(REQUESTS), effort)
    for way in loads:
        rates[way][number] = median(each[way].rate for each in rounds)
    rows = [
        *_rows(f"{case}: round robin, against sticky", rounds, "round robin", "sticky"),
        *_rows(f"{case}: sticky, against directly", rounds, "sticky", "local"),
    ]
    if number > 1:
        rows += _rows(f"{case}: every call relayed, against local", rounds, "relayed", "local")
        rows += await _traffic(loads["relayed"], redis, case, effort)
    if number == 2:
        alone = {way: await _load(way, workers, proxies, 1) for way in ("relayed", "local")}
        rows += _rows(
            "one call at a time, relayed, against local",
            await _rounds(alone, effort.number(REQUESTS) // 4, effort),
            "relayed",
            "local",
        )
    return Results(rows)


async def _load(way: str, workers: list[Worker], proxies: dict[str, str], at_once: int) -> Load:
    """Connections, each with a session that it opened where its requests go, or at another worker's."""
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


async def _traffic(relayed: Load, redis: Redis, case: str, effort: Effort) -> list[Row]:
    """What each relayed call has Redis do, as Redis counts it."""
    with redis.client() as client:
        before = _counted(client)
        calls = len((await relayed.turn(8 * effort.number(REQUESTS))).latencies)
        after = _counted(client)
    return [
        Row("relay", f"{case}: through Redis, each relayed call", None, (after[what] - before[what]) / calls, 0, what)
        for what in before
    ]


def _counted(client: RedisClient) -> dict[str, int]:
    """Messages of the channel layer, commands, and bytes in and out, so far."""
    stats, commands = client.info("stats"), client.info("commandstats")
    return {
        "messages": commands.get("cmdstat_zcount", {}).get("calls", 0),  # for each, whether there is room
        "commands": stats["total_commands_processed"],
        "bytes": stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
    }


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
