"""Calls through the mount, against the SDK's own application and a bare "hello" on the same web server.

    python -m bench.mount

``runmcp`` runs Daphne on our side, and Daphne's own command on the other. There are two protocol generations, answers
as JSON and as an event stream, and two server classes on our side. An MCPServer of the SDK, as on the other side,
shows the cost of the mount. An ``mcp_serving.MCPServer`` shows the cost of the mount, users, permissions and threads
together.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from bench.clients import Connection, Load, get, open_session, post, rounds_of, rows_of
from bench.measuring import Effort, Promise, Results
from bench.servers import WEB_SERVERS, Served, serving
from tests.support.harness import call

ROUNDS = 31
REQUESTS = 320
"""For each side in each round."""
AT_ONCE = 16
GENERATIONS = ("2026-07-28", "2025-11-25")
PROMISES = {"Daphne": Promise(1.0, at_most=True), "uvicorn": Promise(1.08, at_most=True)}
WITH_OUR_CLASS = Promise(1.15, at_most=True)


def measure(effort: Effort) -> Results:
    results = Results()
    for web_server in WEB_SERVERS:
        for json_response in (True, False):
            results.add(asyncio.run(_compare(web_server, json_response, effort)))
    return results


async def _compare(web_server: str, json_response: bool, effort: Effort) -> Results:
    with ExitStack() as stack:
        sides = ["plain", "bare", "django", "hello"] if json_response else ["plain", "bare", "django"]
        served = {side: stack.enter_context(serving(web_server, side, json_response=json_response)) for side in sides}
        results = Results(commands=[each.command for each in served.values()])
        for generation in GENERATIONS:
            loads = {side: await load_of(side, each, generation, json_response) for side, each in served.items()}
            results.add(await _rows(loads, f"{'JSON' if json_response else 'SSE'}, {generation}", web_server, effort))
            for load in loads.values():
                load.close()
        return results


async def load_of(side: str, served: Served, generation: str, json_response: bool) -> Load:
    connections = [await Connection.open(served.address) for _ in range(AT_ONCE)]
    if side == "hello":
        return Load([(each, get("/")) for each in connections], b"hello", [served.process.pid])
    modern = generation == GENERATIONS[0]
    # An older client gets an event stream for every call, a client of 2026-07-28 only for a tool with progress.
    message = call(1, "report" if modern and not json_response else "echo", modern=modern, text="round trip")
    if modern and not json_response:
        message["params"]["_meta"] = {**message["params"]["_meta"], "progressToken": 1}
    sessions = [None if modern else await open_session(each) for each in connections]
    requests = [post(message, session) for session in sessions]
    kind = b"application/json" if json_response else b"text/event-stream"
    first = await connections[0].exchange(requests[0])
    if kind not in first:
        raise RuntimeError(f"not the kind of answer that is measured: {first!r}")
    return Load(list(zip(connections, requests, strict=True)), b"round trip", [served.process.pid])


async def _rows(loads: dict[str, Load], case: str, web_server: str, effort: Effort) -> Results:
    rounds = await rounds_of(loads, REQUESTS, ROUNDS, effort, AT_ONCE)
    part = f"mount, {web_server}"
    rows = [
        *rows_of(part, case, rounds, ours="plain", theirs="bare", promise=PROMISES[web_server]),
        *rows_of(part, f"{case}, mcp_serving.MCPServer", rounds, ours="django", theirs="bare", promise=WITH_OUR_CLASS),
    ]
    if "hello" in loads:
        rows += rows_of(part, f"{case}, against hello", rounds, ours="plain", theirs="hello")
    latencies = {side: [latency * 1000 for each in rounds for latency in each[side].latencies] for side in loads}
    return Results(rows, {f"latency, {web_server}, {case}": latencies})


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
