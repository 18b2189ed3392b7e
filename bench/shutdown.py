"""How a shutdown ends: calls are in flight when the signal arrives, and need another second.

    python -m bench.shutdown

It measures how many answers are lost, and the time from the last answer to the end of the process. On the other side,
uvicorn waits for the answers, and Daphne alone cancels the calls.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass
from statistics import median

from bench.clients import Connection, open_connections, post
from bench.measuring import Effort, Ratio, Results, Row, allow_descriptors
from bench.servers import serving
from tests.support.harness import Process, call

IN_FLIGHT = (1, 100, 1_000)
ROUNDS = 3
LEFT = 1.0
"""Seconds from the signal to the end of the calls."""
PATIENCE = 30.0


@dataclass(frozen=True)
class End:
    """Of one process."""

    lost: int
    status: int
    took: float
    """Seconds from the last answer, or from the signal where there was none."""


def measure(effort: Effort) -> Results:
    results = Results()
    took: dict[str, dict[int, float]] = {"runmcp": {}, "uvicorn": {}}
    for whole in IN_FLIGHT:
        number = effort.number(whole)
        allow_descriptors(2 * number + 200)
        ours = [asyncio.run(_end("Daphne", "plain", number, results)) for _ in range(effort.rounds(ROUNDS))]
        uvicorn = [asyncio.run(_end("uvicorn", "bare", number, results)) for _ in range(effort.rounds(ROUNDS))]
        daphne = asyncio.run(_end("Daphne", "bare", number, results))
        if any(end.status for end in ours):
            raise RuntimeError(f"runmcp has ended with {[end.status for end in ours]}")
        took["runmcp"][number] = median(end.took for end in ours)
        took["uvicorn"][number] = median(end.took for end in uvicorn)
        calls = f"{number:,} call{'' if number == 1 else 's'} in flight"
        lost = max(end.lost for end in ours), daphne.lost
        results.rows += [
            Row("shutdown", f"{calls}: lost, against plain Daphne", None, *lost, "answers"),
            Row(
                "shutdown",
                f"{calls}: last answer to exit, against uvicorn",
                Ratio.of([took["runmcp"][number] / took["uvicorn"][number]]),
                took["runmcp"][number],
                took["uvicorn"][number],
                "s",
            ),
        ]
    results.series["shutdown"] = took
    return results


async def _end(web_server: str, side: str, number: int, results: Results) -> End:
    with serving(web_server, side) as served:
        if served.command not in results.commands:
            results.commands.append(served.command)
        asking = await Connection.open(served.address)
        connections = [each async for each in open_connections(served.address, number)]
        request = post(call(1, "wait", modern=True))
        calls = [asyncio.ensure_future(_answered(connection, request)) for connection in connections]
        await _until_in_flight(asking, number)
        await asking.exchange(post(call(2, "release", modern=True, seconds=LEFT)))
        signalled = time.perf_counter()
        served.process.signal(signal.SIGTERM)
        exit_of = asyncio.create_task(asyncio.to_thread(_exit, served.process))
        moments = await asyncio.gather(*calls)
        status, gone = await exit_of
        for connection in (asking, *connections):
            connection.close()
        answered = [moment for moment in moments if moment is not None]
        return End(number - len(answered), status, gone - max(answered, default=signalled))


async def _until_in_flight(asking: Connection, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        request = post(call(3, "waiting", modern=True))
        while b'"text":"%d"' % number not in await asking.exchange(request):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.02)


async def _answered(connection: Connection, request: bytes) -> float | None:
    """The time of the answer; None if there was none."""
    try:
        async with asyncio.timeout(PATIENCE):
            answer = await connection.exchange(request)
    except (ConnectionError, TimeoutError):
        return None
    return time.perf_counter() if b"released" in answer else None


def _exit(process: Process) -> tuple[int, float]:
    """The exit status, and the time of the end."""
    status = process.popen.wait(PATIENCE)
    return status, time.perf_counter()


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
