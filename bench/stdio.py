"""Round trips over stdio, for each second of CPU time: ``runmcp``, against the SDK's own ``run("stdio")``.

    python -m bench.stdio

Both serve the same server object, and run at the same time. One client, which handles bytes only, measures them in
turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.measuring import Effort, Promise, Results, cpu_seconds, in_turns, row
from bench.servers import typed
from tests.support.harness import INITIALIZE, INITIALIZED, MANAGE, ROOT, call, environment

COMMANDS = {
    "ours": [*MANAGE, "runmcp"],
    "theirs": [sys.executable, "-c", "from tests.project.mcp import server; server.run('stdio')"],
}
DEPTHS = {1: Promise(3.0), 16: Promise(3.0)}
"""Requests in flight at once, and the ratio that is promised."""
ROUNDS = 25
CALLS = 400


CPU = "calls/s of CPU"


def line_of(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Peer:
    """One server process, with its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._pid = process.pid
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        os.write(self._to, line_of(INITIALIZE))
        self._answers()
        os.write(self._to, line_of(INITIALIZED))

    def turn(self, depth: int, calls: int) -> dict[str, float]:
        """The round trips in one second of CPU time, and in one second of real time."""
        # No two requests in flight have the same id: the second one would be refused.
        requests = [line_of(call(number, "immediate", text="round trip")) for number in range(calls)]
        cpu, started = cpu_seconds(self._pid), time.perf_counter()
        os.write(self._to, b"".join(requests[:depth]))
        sent, answered = depth, 0
        while answered < calls:
            new = self._answers()
            answered += new
            if sent < calls:
                os.write(self._to, b"".join(requests[sent : sent + new]))
                sent += new
        took = time.perf_counter() - started
        return {CPU: calls / (cpu_seconds(self._pid) - cpu), "calls/s": calls / took}

    def _answers(self) -> int:
        """Wait for answers; return their number."""
        data = os.read(self._from, 65536)
        if not data:
            raise RuntimeError("the server has closed its standard output")
        lines = data.count(b"\n")
        if b'"error"' in data or b'"isError":true' in data:
            raise RuntimeError(f"not the answer: {data!r}")
        return lines


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[Peer]:
    with subprocess.Popen(
        command,
        env=environment(),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield Peer(process)


def measure(effort: Effort) -> Results:
    return compare({side: (command, ROOT) for side, command in COMMANDS.items()}, effort)


def compare(sides: dict[str, tuple[list[str], Path]], effort: Effort, *, promised: bool = True) -> Results:
    """Measure two commands, each in its working directory."""
    results = Results(commands=[typed(command) for command, _ in sides.values()])
    calls = effort.number(CALLS)
    with ExitStack() as stack:
        peers = {side: stack.enter_context(serving(*started)) for side, started in sides.items()}
        for peer in peers.values():
            peer.turn(16, 4 * calls)  # warm-up
        for depth, promise in DEPTHS.items():
            rounds = [
                {side: peers[side].turn(depth, calls) for side in in_turns(peers, number)}
                for number in range(effort.rounds(ROUNDS))
            ]
            case = "one call at a time" if depth == 1 else f"{depth} calls at once"
            for unit in (CPU, "calls/s"):
                values = [{side: turn[unit] for side, turn in each.items()} for each in rounds]
                results.rows.append(
                    row("stdio", case, values, unit, promise=promise if promised and unit == CPU else None)
                )
    return results


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
