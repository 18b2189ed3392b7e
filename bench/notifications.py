"""Notifications a second to 1,000 subscribers, on several workers against one.

    python -m bench.notifications

A process that serves nothing publishes that a resource has changed. The subscribers have ``subscriptions/listen``
streams of 2026-07-28. The time ends when every subscriber has received every notification.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from bench.clients import ANSWER_SECONDS, Connection, open_connections, post
from bench.measuring import Effort, Ratio, Results, Row, allow_descriptors, in_turns, percentile, row
from bench.relay import ENVIRONMENT
from tests.support.harness import MODERN_META, Process, environment, running
from tests.support.private_redis import running_redis
from tests.support.workers import started

WORKERS = {"ours": 4, "theirs": 1}
SUBSCRIBERS = 1_000
NOTIFICATIONS = 20
"""At once. The channel of a worker holds more messages than that, so none is lost."""
ROUNDS = 3
ONE_BY_ONE = 10
SPARE_DESCRIPTORS = 200
URI = "bench://item"
_NOTIFICATION = b"notifications/resources/updated"


def measure(effort: Effort) -> Results:
    allow_descriptors(2 * effort.number(SUBSCRIBERS) + SPARE_DESCRIPTORS)
    with ExitStack() as stack:
        sides = {side: _serve(number, stack) for side, number in WORKERS.items()}
        return asyncio.run(_measure(sides, effort))


def _serve(number: int, stack: ExitStack) -> tuple[list[str], Process]:
    """Start so many workers with a private Redis, and a process that publishes to them; return the addresses."""
    redis = stack.enter_context(running_redis())
    workers = stack.enter_context(started("runmcp", number, redis, "bench.mounted", env=ENVIRONMENT))
    env = environment(**redis.layers(), **ENVIRONMENT)
    command = [sys.executable, "-m", "bench.publisher"]
    publisher = stack.enter_context(running(command, env=env, stdout=subprocess.DEVNULL))
    return [worker.address for worker in workers], publisher


async def _measure(sides: dict[str, tuple[list[str], Process]], effort: Effort) -> Results:
    number = effort.number(SUBSCRIBERS)
    subscribers = {side: Subscribers(publisher) for side, (_, publisher) in sides.items()}
    for side, (addresses, _) in sides.items():
        await subscribers[side].subscribe(addresses, number)
        await subscribers[side].notify(1)  # warm-up
    rounds = []
    for round_number in range(effort.rounds(ROUNDS)):
        turns = in_turns(sides, round_number)
        rounds.append({side: NOTIFICATIONS / await subscribers[side].notify(NOTIFICATIONS) for side in turns})
    alone = {side: [await each.notify(1) * 1000 for _ in range(ONE_BY_ONE)] for side, each in subscribers.items()}
    for each in subscribers.values():
        each.close()
    case = f"{number:,} subscribers on {WORKERS['ours']} workers, against {WORKERS['theirs']}"
    late = {side: percentile(taken, 50) for side, taken in alone.items()}
    return Results(
        [
            row("notifications", f"{case}: published, and received by all", rounds, "notifications/s"),
            Row(
                "notifications",
                f"{case}: one notification, until the last has it, p50",
                Ratio.of([late["ours"] / late["theirs"]]),
                late["ours"],
                late["theirs"],
                "ms",
            ),
        ]
    )


class Subscribers:
    """The subscribers of one side, and the process that publishes to them."""

    def __init__(self, publisher: Process) -> None:
        self._publisher = publisher
        self._streams: list[Stream] = []

    async def subscribe(self, addresses: list[str], number: int) -> None:
        params: dict[str, Any] = {"notifications": {"resourceSubscriptions": [URI]}, "_meta": MODERN_META}
        listen = post({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
        for index, address in enumerate(addresses):
            share = len(range(index, number, len(addresses)))
            async for stream in open_connections(address, share, Stream):
                stream.send(listen)
                self._streams.append(stream)
        async with asyncio.timeout(ANSWER_SECONDS):
            for stream in self._streams:
                await stream.acknowledged

    async def notify(self, number: int) -> float:
        """Publish so many notifications; return the seconds until every subscriber has received all of them."""
        received = [stream.receive(number) for stream in self._streams]
        began = time.perf_counter()
        assert self._publisher.popen.stdin is not None
        self._publisher.popen.stdin.write(b"%d\n" % number)
        self._publisher.popen.stdin.flush()
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.gather(*received)
        return time.perf_counter() - began

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class Stream(Connection):
    """An open stream whose notifications are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._complete: asyncio.Future[None] | None = None
        self._missing = 0

    def receive(self, number: int) -> asyncio.Future[None]:
        """Done when so many notifications have arrived."""
        self._missing = number
        self._complete = asyncio.get_running_loop().create_future()
        return self._complete

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self.acknowledged.done() and b"subscriptions/acknowledged" in self._received:
            self.acknowledged.set_result(None)
        self._missing -= self._received.count(_NOTIFICATION)
        del self._received[: 1 - len(_NOTIFICATION)]  # a part of the next notification may be left
        if self._complete is not None and not self._complete.done() and self._missing <= 0:
            self._complete.set_result(None)


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
