"""How the CPU time of the server for a call grows: with connections, tools, the size of the result, and workers.

    python -m bench.growth

Each point of a curve is compared with the first. All points of a curve are measured in turns, so that a slow moment of
the machine does not bend the curve. The server also counts its SQL queries.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.clients import Connection, Load, Turn, open_connections, part_of, post, rows_of, turns_of
from bench.measuring import Effort, Promise, Ratio, Results, Row, allow_descriptors, row
from bench.servers import WEB_SERVERS, Served, serving
from tests.support import asgi_servers
from tests.support.harness import MANAGE, MODERN_META, ROOT, call, environment

ROUNDS = 9
REQUESTS = 480
"""For each point in each round, unless the point says otherwise."""
CONNECTIONS = (1, 16, 256, 2_000)
TOOLS = {10: 160, 100: 40, 1_000: 8}
"""The numbers of tools, and how often each round lists them."""
LISTING = 4
"""Connections that list tools."""
SIZES = {1_000: 240, 16_000: 240, 256_000: 48, 1_000_000: 16, 16_000_000: 2}
"""Bytes of the result, and how often each round fetches it."""
WORKERS = (1, 2, 4)
AT_ONCE = 16
"""Connections to all workers together. They are opened until each worker has the same share."""
MOST_CONNECTIONS = 1_000
"""To all workers, before each has its share."""
SPARE_DESCRIPTORS = 400
CONSTANT = Promise(1, at_most=True)
"""The number of SQL queries of a call does not depend on the number of tools."""
UVICORN = ["--no-access-log", "--timeout-keep-alive", "600"]
COMMAND = " ".join(["python -m uvicorn --port 8000", *UVICORN])


class Point(NamedTuple):
    """One point of a curve: its load, and the number of requests in each round."""

    load: Load
    requests: int


def measure(effort: Effort) -> Results:
    levels = (1, effort.number(max(CONNECTIONS))) if effort.quick else CONNECTIONS
    allow_descriptors(len(WEB_SERVERS) * sum(levels) + SPARE_DESCRIPTORS)
    results = _connections(levels, effort)
    with TemporaryDirectory(prefix="mcp-serving-growth-") as folder:
        tools = dict(list(TOOLS.items())[:2]) if effort.quick else TOOLS
        env = {
            "DJANGO_SETTINGS_MODULE": "bench.growth_settings",
            "TEST_SQLITE": str(Path(folder, "db.sqlite3")),
            "TEST_DEBUG": "0",  # with DEBUG, Django stores every query
        }
        with _project({**env, "BENCH_TOOLS": json.dumps(list(tools))}) as served:
            results.add(asyncio.run(_tools(served, _seeded(env), tools, effort)))
        results.add(_sizes(env, effort))
        results.add(_workers(env, effort))
    results.commands += [
        f"{COMMAND} bench.growth_project:application",
        *(f"{COMMAND} --workers {number} bench.growth_project:application" for number in WORKERS[1:]),
    ]
    return results


@contextmanager
def _project(env: dict[str, str], workers: int = 1) -> Iterator[Served]:
    options = [*UVICORN, *(["--workers", str(workers)] if workers > 1 else [])]
    with asgi_servers.serving("uvicorn-uvloop", "bench.growth_project", *options, env=env) as (process, address):
        # Before this line of a worker, the port refuses connections, or other workers take all of them.
        process.wait_for(rf"(?s)(Application startup complete.*){{{workers}}}")
        yield Served(process, address, COMMAND)


def _seeded(env: dict[str, str]) -> str:
    """Prepare the database; return the token of its user."""
    script = "from bench.growth_project import seed; print('token', seed())"
    command = [*MANAGE, "shell", "--command", script]
    done = subprocess.run(command, env=environment(**env), cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.partition("token ")[2].strip()


async def _rounds(points: dict[str, Point], effort: Effort) -> list[dict[str, Turn]]:
    """The turns of all points in each round, after a warm-up."""
    for point in points.values():
        await point.load.turn(point.requests)
    return await turns_of(points, effort.rounds(ROUNDS))


def _rows(case: str, rounds: list[dict[str, Turn]], ours: str, theirs: str) -> list[Row]:
    """The CPU time of a call, and the calls a second, of one point against another. Not the slowest answers."""
    return rows_of("growth", case, rounds, ours=ours, theirs=theirs)[:2]


def _medians(rounds: list[dict[str, Turn]], points: dict[str, int]) -> dict[int, tuple[float, float]]:
    """For each x of a curve, the CPU time of a call in microseconds and the calls a second."""
    return {
        x: (median(each[name].cpu_microseconds for each in rounds), median(each[name].rate for each in rounds))
        for name, x in points.items()
    }


# Connections


def _connections(levels: tuple[int, ...], effort: Effort) -> Results:
    results = Results(series={"growth, connections": {}})
    for web_server in WEB_SERVERS:
        # A process for each point: connections that wait for another point must not cost time here.
        with ExitStack() as stack, ThreadPoolExecutor(len(levels)) as pool:
            servers = [serving(web_server, "django", json_response=True) for _ in levels]
            served = list(pool.map(stack.enter_context, servers))
            results.commands.append(served[0].command)
            asyncio.run(_connected(web_server, dict(zip(levels, served, strict=True)), results, effort))
    return results


async def _connected(web_server: str, served: dict[int, Served], results: Results, effort: Effort) -> None:
    request = post(call(1, "echo", modern=True, text="round trip"))
    points, opened = {}, []
    for number, each in served.items():
        connections = [connection async for connection in open_connections(each.address, number)]
        load = Load([(connection, request) for connection in connections], b"round trip", [each.process.pid])
        points[f"{number:,}"] = Point(load, max(number, effort.number(REQUESTS)))
        opened += connections
    rounds = await _rounds(points, effort)
    for connection in opened:
        connection.close()
    first, *rest = points
    for name in rest:
        results.rows += _rows(f"{name} connections, {web_server}, against {first}", rounds, name, first)
    results.series["growth, connections"][web_server] = _medians(rounds, {f"{each:,}": each for each in served})


# Tools


async def _tools(served: Served, token: str, numbers: dict[int, int], effort: Effort) -> Results:
    headers = {"Authorization": f"Bearer {token}"}
    connections = [await Connection.open(served.address) for _ in range(LISTING)]
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": MODERN_META}}
    points = {}
    for path in ("tools", "permissions"):
        for number, requests in numbers.items():
            request = post(message, path=f"/{path}/{number}", headers=headers)
            answer = await connections[0].exchange(request)
            if answer.count(b'"inputSchema"') != number:
                raise RuntimeError(f"not {number} tools: {answer[:1000]!r}")
            load = Load([(each, request) for each in connections], b'"tools"', [served.process.pid])
            points[f"{path}/{number}"] = Point(load, max(LISTING, effort.number(requests)))
    rounds = await _rounds(points, effort)
    counts = {name: await _queries(points[name], connections[0]) for name in points}
    for connection in connections:
        connection.close()
    first, *more = numbers
    results = Results()
    for path, kind in (("tools", "without permissions"), ("permissions", "with permissions")):
        for number in more:
            case = f"tools/list with {number:,} tools, {kind}, against {first}"
            results.rows += _rows(case, rounds, f"{path}/{number}", f"{path}/{first}")
            ours, theirs = counts[f"{path}/{number}"], counts[f"{path}/{first}"]
            grown = ours / theirs  # a count is exact
            ratio = Ratio(grown, grown, grown)
            results.rows.append(Row("growth", f"{case}: each call", ratio, ours, theirs, "SQL queries", CONSTANT))
    for number in numbers:
        case = f"tools/list with {number:,} tools: with permissions, against without"
        ours, theirs = f"permissions/{number}", f"tools/{number}"
        results.rows += _rows(case, rounds, ours, theirs)[:1]
        results.rows.append(Row("growth", f"{case}: each call", None, counts[ours], counts[theirs], "SQL queries"))
    results.series["growth, tools"] = {
        "without permissions": _medians(rounds, {f"tools/{number}": number for number in numbers}),
        "each tool with a permission": _medians(rounds, {f"permissions/{number}": number for number in numbers}),
    }
    return results


async def _queries(point: Point, control: Connection) -> float:
    """How many SQL queries the server makes for one call, as its database connections count them."""
    request = post(call(1, "queries", modern=True))
    await control.exchange(request)
    calls = len((await point.load.turn(point.requests)).latencies)
    return int(part_of(rb"queries (\d+)", await control.exchange(request))) / calls


# Results


def _sizes(env: dict[str, str], effort: Effort) -> Results:
    sizes = (min(SIZES), 1_000_000) if effort.quick else tuple(SIZES)
    # A process for each size: after an answer of 16 MB, the C library keeps the memory for later answers.
    with ExitStack() as stack, ThreadPoolExecutor(len(sizes)) as pool:
        served = list(pool.map(stack.enter_context, [_project(env) for _ in sizes]))
        return asyncio.run(_sized(dict(zip(sizes, served, strict=True)), effort))


async def _sized(served: dict[int, Served], effort: Effort) -> Results:
    points, opened = {}, []
    for size, each in served.items():
        connection = await Connection.open(each.address)
        request = post(call(1, "text", modern=True, length=size))
        load = Load([(connection, request)], b"0123456789", [each.process.pid])
        points[_size(size)] = Point(load, effort.number(SIZES[size]))
        opened.append(connection)
    rounds = await _rounds(points, effort)
    for connection in opened:
        connection.close()
    results = Results()
    first, *rest = points
    sizes = dict(zip(points, served, strict=True))
    for name in rest:
        case = f"a result of {name}, against {first}"
        results.rows += _rows(case, rounds, name, first)
        megabyte = [
            {side: turn.cpu_microseconds / sizes[side] * 1000 for side, turn in each.items()} for each in rounds
        ]
        results.rows.append(row("growth", case, megabyte, "ms of CPU for 1 MB", ours=name, theirs=first))
    results.series["growth, results"] = {"uvicorn": _medians(rounds, sizes)}
    return results


def _size(number: int) -> str:
    return f"{number // 1_000_000} MB" if number >= 1_000_000 else f"{number // 1_000} kB"


# Workers


def _workers(env: dict[str, str], effort: Effort) -> Results:
    numbers = WORKERS[:2] if effort.quick else WORKERS
    with ExitStack() as stack, ThreadPoolExecutor(len(numbers)) as pool:
        served = list(pool.map(stack.enter_context, [_project(env, number) for number in numbers]))
        return asyncio.run(_shared(dict(zip(numbers, served, strict=True)), effort))


async def _shared(served: dict[int, Served], effort: Effort) -> Results:
    request = post(call(1, "text", modern=True, length=100))
    points, opened = {}, []
    for number, each in served.items():
        connections = await _balanced(each.address, number)
        load = Load([(connection, request) for connection in connections], b"0123456789", [each.process.pid])
        points[_count(number)] = Point(load, effort.number(2 * REQUESTS))
        opened += connections
    rounds = await _rounds(points, effort)
    for connection in opened:
        connection.close()
    results = Results()
    first, *rest = points
    for name in rest:
        results.rows += _rows(f"{name}, against {first}", rounds, name, first)
    results.series["growth, workers"] = {"uvicorn": _medians(rounds, {_count(each): each for each in served})}
    return results


def _count(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


async def _balanced(address: str, workers: int) -> list[Connection]:
    """Connections of which each worker has the same share. The system, not the client, chooses the worker of each."""
    request = post(call(1, "pid", modern=True))
    by_worker: dict[bytes, list[Connection]] = {}
    spare, share = [], AT_ONCE // workers
    for _ in range(MOST_CONNECTIONS):
        connection = await Connection.open(address)
        mine = by_worker.setdefault(part_of(rb"pid (\d+)", await connection.exchange(request)), [])
        (mine if len(mine) < share else spare).append(connection)
        if sum(len(each) for each in by_worker.values()) == share * workers:
            break
    else:
        raise RuntimeError(f"{MOST_CONNECTIONS} connections have reached only {len(by_worker)} of {workers} workers.")
    for connection in spare:
        connection.close()
    return [connection for each in by_worker.values() for connection in each]


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
