"""The cost of idle sessions and streams: memory, and the CPU time of other clients' calls.

    python -m bench.idle

Daphne serves both sides, with event streams as answers. The memory is the growth of the process for each session or
stream. With a single one, it is little more than noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.clients import (
    Connection,
    Load,
    open_connections,
    open_session,
    post,
    request_bytes,
    rounds_of,
    rows_of,
)
from bench.measuring import Effort, Promise, Ratio, Results, Row, allow_descriptors, resident_memory
from bench.servers import Served, serving
from tests.support.harness import call
from tests.support.http_client import listen
from tests.support.raw_http import headers_of

LEVELS = (1, 1_000, 5_000)
ROUNDS = 25
REQUESTS = 160
AT_ONCE = 16
PROMISE = Promise(1.05, at_most=True)
SPARE_DESCRIPTORS = 200
MOST_SUBSCRIPTIONS = 1_024
"""The limit of the SDK."""


def measure(effort: Effort) -> Results:
    levels = tuple(effort.number(level) for level in LEVELS)
    allow_descriptors(2 * max(levels) + SPARE_DESCRIPTORS)  # each side has so many connections to this client
    results = asyncio.run(_sessions(levels, effort))
    results.add(asyncio.run(_subscriptions([level for level in levels if level <= MOST_SUBSCRIPTIONS])))
    return results


async def _sessions(levels: tuple[int, ...], effort: Effort) -> Results:
    results = Results()
    with serving("Daphne", "plain") as few, serving("Daphne", "plain") as many, serving("Daphne", "bare") as bare:
        results.commands = [many.command, bare.command]
        peers = {"ours": Peer(many), "theirs": Peer(bare)}
        one = Peer(few)
        for peer in (one, *peers.values()):
            await peer.warm_up(effort)
        await one.open_sessions(1)
        idle: dict[str, dict[int, int]] = {side: {} for side in peers}
        for level in levels:
            await asyncio.gather(*(peer.open_sessions(level) for peer in peers.values()))
            for side, peer in peers.items():
                idle[side][level] = peer.grown()
            if level > 1:
                for modern in (False, True):
                    results.rows += await _calls(one, peers["ours"], level, modern, effort)
        results.add(_memory("idle session", idle))
        for peer in peers.values():
            peer.begin_anew()
        streams: dict[str, dict[int, int]] = {side: {} for side in peers}
        for level in levels:
            await asyncio.gather(*(peer.open_streams(level) for peer in peers.values()))
            for side, peer in peers.items():
                streams[side][level] = peer.grown()
        results.add(_memory("open stream of a session", streams))
        for peer in (one, *peers.values()):
            peer.close()
    return results


async def _subscriptions(levels: list[int]) -> Results:
    with serving("Daphne", "plain") as ours, serving("Daphne", "bare") as bare:
        peers = {"ours": Peer(ours), "theirs": Peer(bare)}
        for peer in peers.values():
            await peer.warm_up(Effort(quick=True))
        grown: dict[str, dict[int, int]] = {side: {} for side in peers}
        for level in levels:
            await asyncio.gather(*(peer.open_subscriptions(level) for peer in peers.values()))
            for side, peer in peers.items():
                grown[side][level] = peer.grown()
        for peer in peers.values():
            peer.close()
        return _memory("open subscriptions/listen of 2026-07-28", grown)


async def _calls(one: Peer, many: Peer, level: int, modern: bool, effort: Effort) -> list[Row]:
    """Calls to a process with ``level`` idle sessions, against the same kind of process with one session."""
    loads = {"ours": await many.load(modern), "theirs": await one.load(modern)}
    rounds = await rounds_of(loads, REQUESTS, ROUNDS, effort, AT_ONCE)
    calls = "calls of 2026-07-28" if modern else "calls in sessions"
    return rows_of("idle sessions", f"{calls} with {level:,} open, against with 1", rounds, promise=PROMISE)


def _memory(what: str, grown: dict[str, dict[int, int]]) -> Results:
    rows = [
        Row(
            "memory",
            f"each {what}, at {level:,}",
            ratio=Ratio.of([grown["ours"][level] / grown["theirs"][level]]) if grown["theirs"][level] > 0 else None,
            ours=grown["ours"][level] / level / 1000,
            theirs=grown["theirs"][level] / level / 1000,
            unit="kB",
        )
        for level in grown["ours"]
    ]
    return Results(rows, {f"memory, {what}": grown})


class Peer:
    """One server process, its open sessions and streams, and the growth of its memory."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._sessions: list[str] = []
        self._calling: list[Connection] = []
        self._requests: list[bytes] = []
        self._standing: list[Connection] = []
        self._before = 0

    async def warm_up(self, effort: Effort) -> None:
        load = await self.load()
        await load.turn(effort.number(REQUESTS) + AT_ONCE)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Measure the growth of the process from now on."""
        self._before = resident_memory(self._served.process.pid)

    def grown(self) -> int:
        return resident_memory(self._served.process.pid) - self._before

    async def load(self, modern: bool = False) -> Load:
        """Calls of either protocol generation. For older clients, each connection opens a session first."""
        # The server may have closed them while many sessions or streams were opened.
        if not (self._calling and all(connection.is_open for connection in self._calling)):
            self._calling = [await Connection.open(self._served.address) for _ in range(AT_ONCE)]
        if not self._requests:
            self._requests = [
                post(call(1, "echo", text="round trip"), await open_session(connection)) for connection in self._calling
            ]
        modern_request = post(call(1, "echo", modern=True, text="round trip"))
        requests = [modern_request] * AT_ONCE if modern else self._requests
        return Load(list(zip(self._calling, requests, strict=True)), b"round trip", [self._served.process.pid])

    async def open_sessions(self, number: int) -> None:
        """Open so many idle sessions."""

        async def open_some(left: Iterator[int]) -> None:
            connection = await Connection.open(self._served.address)
            for _ in left:
                self._sessions.append(await open_session(connection))
            connection.close()

        left = iter(range(number - len(self._sessions)))
        await asyncio.gather(*(open_some(left) for _ in range(AT_ONCE)))

    async def open_streams(self, number: int) -> None:
        """Open a GET stream for each of so many sessions."""
        sessions = self._sessions[len(self._standing) : number]
        await self._stand([request_bytes("GET", "/mcp", headers_of({"method": ""}, session)) for session in sessions])

    async def open_subscriptions(self, number: int) -> None:
        await self._stand([post(listen())] * (number - len(self._standing)))

    async def _stand(self, requests: list[bytes]) -> None:
        connections = [each async for each in open_connections(self._served.address, len(requests))]
        for connection, request in zip(connections, requests, strict=True):
            # Not awaited: Daphne alone sends the headers of a stream with its first event.
            connection.send(request)
        self._standing += connections
        await self._settled()

    async def _settled(self) -> None:
        """Return when the server has received everything: when a later call has been answered."""
        await (await self.load()).turn(2 * AT_ONCE)
        await asyncio.sleep(1)

    def close(self) -> None:
        for connection in (*self._calling, *self._standing):
            connection.close()


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
