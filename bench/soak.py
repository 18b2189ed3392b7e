"""A long run against the test project: is everything released?

    python -m bench.soak

Calls of both protocol generations, sessions opened and deleted, sessions opened and abandoned to the idle
timeout, and streams opened and cut. Afterwards the process must be as it was after a warm-up: memory
within 10 MB, and as many tasks, threads and file descriptors.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.support.harness import call, serving_http
from tests.support.http_client import Clients, Connection, listen
from tests.support.raw_http import routing

CLIENTS = 16
"""The number of clients at the same time."""

IDLE_TIMEOUT = 1.0
"""Seconds until the server drops an abandoned session."""

MEMORY = 10_000_000
"""Bytes by which the process may grow."""


@dataclass(frozen=True)
class Load:
    """The number of each."""

    calls: int = 20_000
    sessions: int = 2_000
    abandoned: int = 2_000
    streams: int = 500

    def times(self, factor: float) -> Load:
        return Load(*(round(number * factor) for number in (self.calls, self.sessions, self.abandoned, self.streams)))


@dataclass(frozen=True)
class Internals:
    """The measurements of the process under test."""

    tasks: int
    threads: int
    descriptors: int
    memory: int

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.tasks, self.threads, self.descriptors

    @classmethod
    async def of(cls, address: str) -> Internals:
        async with Clients(address) as clients:
            connection = await clients.connect()
            return cls(**json.loads((await connection.request("GET", "/internals/", Connection="close")).body))


async def _fill_the_thread_pool(address: str) -> None:
    """Sync tools of sessions run in anyio's threads: a pool that grows with the calls at the same time, up to 40."""
    async with Clients(address) as clients:
        session = await clients.session()
        connections = [await clients.another(session) for _ in range(40)]
        await asyncio.gather(
            *(c.request("POST", "/mcp", call(i, "block", seconds=0.5)) for i, c in enumerate(connections))
        )
        await session.request("DELETE", "/mcp")


async def apply(load: Load, address: str) -> None:
    await _each(load.calls, address, _call)
    await _each(load.sessions, address, _session)
    await _each(load.abandoned, address, _abandoned)
    await _each(load.streams, address, _stream)


async def settled(address: str, before: Internals, timeout: float = 30.0) -> Internals:
    """The measurements after the idle timeout has ended the abandoned sessions."""
    end = time.monotonic() + timeout
    while True:
        now = await Internals.of(address)
        if now.counts <= before.counts or time.monotonic() > end:
            return now
        await asyncio.sleep(0.2)


async def soak(address: str, load: Load, warm_up: Load) -> tuple[Internals, Internals]:
    """The measurements before and after the load."""
    await _fill_the_thread_pool(address)
    idle = await Internals.of(address)
    await apply(warm_up, address)
    before = await settled(address, idle)
    await apply(load, address)
    return before, await settled(address, before)


def problems(before: Internals, after: Internals) -> list[str]:
    found = [
        f"{name}: {now} instead of {then}"
        for name, now, then in zip(("tasks", "threads", "descriptors"), after.counts, before.counts, strict=True)
        if now > then
    ]
    if after.memory - before.memory > MEMORY:
        found.append(f"memory: {(after.memory - before.memory) / 1e6:.1f} MB more")
    return found


async def _each(number: int, address: str, work: Callable[[Clients, Connection, int], Awaitable[None]]) -> None:
    """Do the work that many times, shared by the clients, each on one connection."""
    numbers = iter(range(number))

    async def client() -> None:
        async with Clients(address) as clients:
            connection = await clients.connect()
            for index in numbers:
                await work(clients, connection, index)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _call(clients: Clients, connection: Connection, index: int) -> None:
    if "Mcp-Protocol-Version" not in connection.headers:
        if index % 2:
            await clients.initialize(connection)
        else:
            connection.headers["Mcp-Protocol-Version"] = "2026-07-28"
    modern = "Mcp-Session-Id" not in connection.headers
    message = call(index, "echo", modern=modern, text="x" * 100)
    answer = await connection.request("POST", "/mcp", message, **(routing(message) if modern else {}))
    assert answer.status == 200, answer


async def _session(clients: Clients, connection: Connection, index: int) -> None:
    await clients.initialize(connection)
    assert (await connection.request("DELETE", "/mcp")).status == 200
    del connection.headers["Mcp-Session-Id"]


async def _abandoned(clients: Clients, connection: Connection, index: int) -> None:
    await clients.initialize(connection)
    del connection.headers["Mcp-Session-Id"]


async def _stream(clients: Clients, connection: Connection, index: int) -> None:
    if index % 2:
        stream = await clients.session()
        stream.send("GET", "/mcp")
    else:
        stream = await clients.modern()
        message = listen(index)
        stream.send("POST", "/mcp", message, **routing(message))
    assert (await stream.head()).status == 200
    stream.reset()


def main() -> None:
    load = Load()
    env = {"TEST_HANDLER": json.dumps({"session_idle_timeout": IDLE_TIMEOUT})}
    with serving_http(env=env) as (_, address):
        began = time.monotonic()
        before, after = asyncio.run(soak(address, load, load.times(0.1)))
        print(f"{load} took {time.monotonic() - began:.0f} s\nbefore: {before}\nafter:  {after}")
    if found := problems(before, after):
        sys.exit("left behind: " + "; ".join(found))


if __name__ == "__main__":
    main()
