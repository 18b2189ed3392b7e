"""Events a second to a thousand listeners, on several workers against one.

    python -m bench.events

A process that serves nothing, as any Django code, tells of changes of a resource; the listeners have
``subscriptions/listen`` streams of 2026-07-28. What counts is when every listener has had every event.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from bench.clients import ANSWER_SECONDS, Connection, open_connections, post
from bench.measuring import Effort, Results, Row, allow_descriptors, in_turns, percentile, row
from bench.relay import ENVIRONMENT
from tests.support.harness import MODERN_META, Process, environment, running
from tests.support.private_redis import running_redis
from tests.support.workers import started

WORKERS = {"ours": 4, "theirs": 1}
LISTENERS = 1_000
EVENTS = 20
"""At once: fewer than a channel of the layer holds, which loses none to a worker that is behind."""
ROUNDS = 3
ONE_BY_ONE = 10
SPARE_DESCRIPTORS = 200
URI = "bench://item"
_EVENT = b"notifications/resources/updated"


def measure(effort: Effort) -> Results:
    allow_descriptors(2 * effort.number(LISTENERS) + SPARE_DESCRIPTORS)
    with ExitStack() as stack:
        sides = {side: _serve(number, stack) for side, number in WORKERS.items()}
        return asyncio.run(_measure(sides, effort))


def _serve(number: int, stack: ExitStack) -> tuple[list[str], Process]:
    """The addresses of so many workers with a Redis of their own, and the process that publishes to them."""
    redis = stack.enter_context(running_redis())
    workers = stack.enter_context(started("runmcp", number, redis, "bench.mounted", env=ENVIRONMENT))
    env = environment(**redis.layers(), **ENVIRONMENT)
    command = [sys.executable, "-m", "bench.publisher"]
    publisher = stack.enter_context(running(command, env=env, stdout=subprocess.DEVNULL))
    return [worker.address for worker in workers], publisher


async def _measure(sides: dict[str, tuple[list[str], Process]], effort: Effort) -> Results:
    listeners = effort.number(LISTENERS)
    audiences = {side: Audience(publisher) for side, (_, publisher) in sides.items()}
    for side, (addresses, _) in sides.items():
        await audiences[side].gather(addresses, listeners)
        await audiences[side].hear(1)  # warm-up
    rounds = []
    for round_number in range(effort.rounds(ROUNDS)):
        rates = {side: EVENTS / await audiences[side].hear(EVENTS) for side in in_turns(sides, round_number)}
        rounds.append(rates)
    alone = {side: [await each.hear(1) * 1000 for _ in range(ONE_BY_ONE)] for side, each in audiences.items()}
    for each in audiences.values():
        each.close()
    case = f"{listeners:,} listeners on {WORKERS['ours']} workers, against {WORKERS['theirs']}"
    late = {side: percentile(taken, 50) for side, taken in alone.items()}
    return Results(
        [
            row("events", f"{case}: published, and heard by all", rounds, "events/s"),
            Row(
                "events",
                f"{case}: one event, until the last has it, p50",
                late["ours"] / late["theirs"],
                late["ours"],
                late["theirs"],
                "ms",
            ),
        ]
    )


class Audience:
    """Those who listen, and who tells them something."""

    def __init__(self, publisher: Process) -> None:
        self._publisher = publisher
        self._listeners: list[Listener] = []

    async def gather(self, addresses: list[str], number: int) -> None:
        params: dict[str, Any] = {"notifications": {"resourceSubscriptions": [URI]}, "_meta": MODERN_META}
        listen = post({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
        for index, address in enumerate(addresses):
            share = len(range(index, number, len(addresses)))
            async for listener in open_connections(address, share, Listener):
                listener.send(listen)
                self._listeners.append(listener)
        async with asyncio.timeout(ANSWER_SECONDS):
            for listener in self._listeners:
                await listener.acknowledged

    async def hear(self, number: int) -> float:
        """How many seconds it takes from the moment so many events are published until all have heard all."""
        heard = [listener.hear(number) for listener in self._listeners]
        began = time.perf_counter()
        assert self._publisher.popen.stdin is not None
        self._publisher.popen.stdin.write(b"%d\n" % number)
        self._publisher.popen.stdin.flush()
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*heard)
        return time.perf_counter() - began

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


class Listener(Connection):
    """An open stream, of which only the events are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard: asyncio.Future[None] | None = None
        self._left = 0

    def hear(self, number: int) -> asyncio.Future[None]:
        """Done once so many events have come."""
        self._left = number
        self._heard = asyncio.get_running_loop().create_future()
        return self._heard

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self.acknowledged.done() and b"subscriptions/acknowledged" in self._received:
            self.acknowledged.set_result(None)
        self._left -= self._received.count(_EVENT)
        del self._received[: 1 - len(_EVENT)]  # half an event may be left
        if self._heard is not None and not self._heard.done() and self._left <= 0:
            self._heard.set_result(None)


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
