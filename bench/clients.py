"""A client that needs little CPU time: requests are prepared once, and answers are checked as bytes.

It runs in a process of its own, on another core than the server. It needs about 50 microseconds for a request and its
answer. The slowest server here needs forty times as long, the fastest five times.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from bench.measuring import Effort, Promise, Row, cpu_seconds, in_turns, percentile, row
from tests.support.harness import INITIALIZE, INITIALIZED
from tests.support.raw_http import headers_of

ANSWER_SECONDS = 60.0


def request_bytes(method: str, path: str, headers: dict[str, str], message: dict[str, Any] | None = None) -> bytes:
    body = b"" if message is None else json.dumps(message).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:80", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(
    message: dict[str, Any], session: str | None = None, path: str = "/mcp", headers: dict[str, str] | None = None
) -> bytes:
    """A POST of a JSON-RPC message: of protocol 2026-07-28 if it has ``_meta``, otherwise of an older client."""
    return request_bytes("POST", path, {**headers_of(message, session), **(headers or {})}, message)


def get(path: str) -> bytes:
    return request_bytes("GET", path, {})


class Connection(asyncio.Protocol):
    """One kept-alive connection, with one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: str) -> Self:
        host, _, port = address.removeprefix("http://").partition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> bytes:
        """Send a request; return the whole answer.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        self.send(request)
        return await self._waiting

    def send(self, request: bytes) -> None:
        """Send a request without waiting for the answer."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the server has closed the connection")
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._waiting is None or self._waiting.done() or not self._is_whole():
            return
        answer = bytes(self._received)
        self._received.clear()
        self._waiting.set_result(answer)

    def _is_whole(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._received[:end]).lower()
        if b"transfer-encoding: chunked" in head:
            return self._received.endswith(b"\r\n0\r\n\r\n")
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return len(self._received) >= end + 4 + int(length or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("the server has closed the connection"))


async def open_connections(address: str, number: int, kind: type[Connection] = Connection) -> AsyncIterator[Connection]:
    """Open so many connections, no faster than the server accepts them.

    Past its backlog (50, Daphne's) the system drops the packet that opens a connection, and repeats it a second later.
    """
    asking = await Connection.open(address)
    for index in range(number):
        if index % 32 == 31:
            await asking.exchange(get("/"))
        yield await kind.open(address)
    asking.close()


async def open_session(connection: Connection, headers: dict[str, str] | None = None) -> str:
    """Open a session as an older client; return its id."""
    answer = await connection.exchange(post(INITIALIZE, headers=headers))
    session = part_of(rb"(?i)\r\nmcp-session-id: (\S+)\r\n", answer).decode()
    await connection.exchange(post(INITIALIZED, session, headers=headers))
    return session


def part_of(pattern: bytes, answer: bytes) -> bytes:
    """What the first group of a pattern matches in an answer.

    Raises:
        RuntimeError: the pattern matches nothing.
    """
    found = re.search(pattern, answer)
    if found is None:
        raise RuntimeError(f"not the answer: {answer[:1000]!r}")
    return found[1]


@dataclass(frozen=True)
class Turn:
    """The measurements of one side in one turn."""

    latencies: list[float]
    took: float
    cpu: float
    """Seconds of CPU time of the server's processes, for all calls of the turn."""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.took

    @property
    def cpu_microseconds(self) -> float:
        """Microseconds of CPU time for one call."""
        return self.cpu / len(self.latencies) * 1e6


class Load:
    """Connections that keep one server busy: each sends its next request when it has its answer.

    Args:
        connections: each with the request that it repeats.
        expected: what every answer has to contain.
        pids: the processes of the server.
    """

    def __init__(self, connections: Sequence[tuple[Connection, bytes]], expected: bytes, pids: Sequence[int]) -> None:
        self._connections = connections
        self._expected = expected
        self._pids = pids

    def close(self) -> None:
        for connection, _ in self._connections:
            connection.close()

    async def turn(self, requests: int) -> Turn:
        latencies: list[float] = []
        with _without_garbage_collection():
            cpu, started = self._cpu(), time.perf_counter()
            async with asyncio.timeout(ANSWER_SECONDS), asyncio.TaskGroup() as group:
                for connection, request in self._connections:
                    group.create_task(self._repeat(connection, request, requests // len(self._connections), latencies))
            return Turn(latencies, time.perf_counter() - started, self._cpu() - cpu)

    def _cpu(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids)

    async def _repeat(self, connection: Connection, request: bytes, times: int, latencies: list[float]) -> None:
        for _ in range(times):
            sent = time.perf_counter()
            answer = await connection.exchange(request)
            latencies.append(time.perf_counter() - sent)
            if self._expected not in answer:
                raise RuntimeError(f"not the answer: {answer!r}")


async def rounds_of(
    loads: dict[str, Load], requests: int, rounds: int, effort: Effort, least: int = 1
) -> list[dict[str, Turn]]:
    """The turns of all sides in each round, after a warm-up.

    Args:
        loads: the load of each side.
        requests: the number of requests of each side in each round.
        rounds: the number of rounds.
        effort: whether fewer requests and rounds are enough.
        least: the lowest number of requests in a round.
    """
    requests = max(least, effort.number(requests))
    for load in loads.values():
        await load.turn(2 * requests)
    return await turns_of({side: (load, requests) for side, load in loads.items()}, effort.rounds(rounds))


async def turns_of(loads: Mapping[str, tuple[Load, int]], rounds: int) -> list[dict[str, Turn]]:
    """The turns of all sides in each round. Each side has its load, and its number of requests in each round."""

    async def turn(side: str) -> Turn:
        load, requests = loads[side]
        return await load.turn(requests)

    return [{side: await turn(side) for side in in_turns(loads, number)} for number in range(rounds)]


def rows_of(
    part: str,
    case: str,
    rounds: Sequence[dict[str, Turn]],
    *,
    ours: str = "ours",
    theirs: str = "theirs",
    promise: Promise | None = None,
) -> list[Row]:
    """The CPU time of a call, to which the promise applies, the throughput, and the slowest answers."""
    units: dict[str, Callable[[Turn], float]] = {
        "µs of CPU": lambda turn: turn.cpu_microseconds,
        "calls/s": lambda turn: turn.rate,
        "ms, p99": lambda turn: percentile(turn.latencies, 99) * 1000,
    }
    return [
        row(
            part,
            case,
            [{side: value(turn) for side, turn in each.items()} for each in rounds],
            unit,
            ours=ours,
            theirs=theirs,
            promise=promise if unit == "µs of CPU" else None,
        )
        for unit, value in units.items()
    ]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pauses of the client must not count as latency of the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
