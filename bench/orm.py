"""Requests a second of a sync tool with one query, beside a Django view with the same query.

    python -m bench.orm

Both are served by one Daphne process, on a PostgreSQL of the benchmark's own; the same client takes turns
between them. What counts are the ratios: the absolute numbers are the machine's.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from tests.harness import MODERN_META, call, serving_http
from tests.postgres import PostgreSQL, running_postgresql

ROUNDS = 15
CALLS = 160
AT_ONCE = (1, 16)
MAX_AGES = (0, 60)
PROMISED = 1.0


def _request(head: list[str], body: bytes = b"") -> bytes:
    lines = [*head, "Host: 127.0.0.1", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


REQUESTS = {
    "tool": _request(
        [
            "POST /mcp HTTP/1.1",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            f"MCP-Protocol-Version: {MODERN_META['io.modelcontextprotocol/protocolVersion']}",
            "Mcp-Method: tools/call",
            "Mcp-Name: tool",
        ],
        json.dumps(call(1, "tool", modern=True)).encode(),
    ),
    "view": _request(["GET /view/ HTTP/1.1"]),
}


class Peer:
    """Kept-alive connections to one server, each with one request at a time."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.removeprefix("http://").partition(":")

    async def requests_a_second(self, request: bytes, at_once: int) -> float:
        connections = [await asyncio.open_connection(self._host, int(self._port)) for _ in range(at_once)]
        started = time.perf_counter()
        await asyncio.gather(*(self._repeat(request, CALLS // at_once, *connection) for connection in connections))
        took = time.perf_counter() - started
        for _, writer in connections:
            writer.close()
        return CALLS // at_once * at_once / took

    async def _repeat(
        self, request: bytes, times: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for _ in range(times):
            writer.write(request)
            answer = await _answer(reader)
            if b"the one" not in answer:
                raise RuntimeError(f"not the answer: {answer!r}")


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """One HTTP response, whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        return head + await reader.readuntil(b"\r\n0\r\n\r\n")
    return head + await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))


@dataclass(frozen=True)
class Rates:
    """Medians over the rounds; the ratio is taken in each round, so that the machine's other load cancels out."""

    ratio: float
    tool: float
    view: float


async def rates(peer: Peer, at_once: int) -> Rates:
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        in_turn = list(REQUESTS) if number % 2 else list(reversed(REQUESTS))
        rounds.append({name: await peer.requests_a_second(REQUESTS[name], at_once) for name in in_turn})
    return Rates(
        ratio=median(each["tool"] / each["view"] for each in rounds),
        tool=median(each["tool"] for each in rounds),
        view=median(each["view"] for each in rounds),
    )


def measure(postgres: PostgreSQL, max_age: int) -> dict[int, Rates]:
    """The rates for each number of requests at once."""
    env = postgres.env(CONN_MAX_AGE=max_age) | {
        "DJANGO_SETTINGS_MODULE": "bench.orm_settings",
        "TEST_MCP_SERVING": json.dumps(
            {"SERVER": "bench.orm_project.server", "HTTP_SERVER": "bench.orm_project.build_daphne"}
        ),
        "TEST_DEBUG": "0",  # with DEBUG, Django remembers every query
    }

    async def run(address: str) -> dict[int, Rates]:
        peer = Peer(address)
        for request in REQUESTS.values():
            await peer.requests_a_second(request, max(AT_ONCE))  # warm-up
        return {at_once: await rates(peer, at_once) for at_once in AT_ONCE}

    with serving_http(env=env) as (_, address):
        return asyncio.run(run(address))


def main() -> None:
    print(f"{'CONN_MAX_AGE':>12}  {'at once':>7}  {'ratio':>6}  {'promised':>8}  {'tool/s':>8}  {'view/s':>8}")
    with running_postgresql() as postgres:
        for max_age in MAX_AGES:
            for at_once, each in measure(postgres, max_age).items():
                print(
                    f"{max_age:>12}  {at_once:>7}  {each.ratio:>6.2f}  {PROMISED:>8}"
                    f"  {each.tool:>8,.0f}  {each.view:>8,.0f}"
                )
    packages = ", ".join(f"{name} {version(name)}" for name in ("mcp", "Django", "daphne", "channels", "psycopg"))
    print(f"Medians of {ROUNDS} rounds of {CALLS:,} requests. Python {platform.python_version()}, {packages}.")


if __name__ == "__main__":
    main()
