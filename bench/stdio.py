"""Round trips a second over stdio: ``runmcp``, against the SDK's own ``run("stdio")``.

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
from contextlib import contextmanager
from typing import Any

from bench.measuring import Effort, Promise, Results, in_turns, row
from bench.servers import typed
from tests.support.harness import INITIALIZE, INITIALIZED, MANAGE, ROOT, call, environment

COMMANDS = {
    "ours": [*MANAGE, "runmcp"],
    "theirs": [sys.executable, "-c", "from tests.project.mcp import server; server.run('stdio')"],
}
DEPTHS = {1: Promise(1.5), 16: Promise(2.0)}
"""Requests in flight at once, and the ratio that is promised."""
ROUNDS = 9
CALLS = 1_500


def line_of(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Peer:
    """One server process, with its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._request = line_of(call(1, "immediate", text="round trip"))
        os.write(self._to, line_of(INITIALIZE))
        self._answers()
        os.write(self._to, line_of(INITIALIZED))

    def round_trips_a_second(self, depth: int, calls: int) -> float:
        started = time.perf_counter()
        os.write(self._to, self._request * depth)
        sent, answered = depth, 0
        while answered < calls:
            new = self._answers()
            answered += new
            more = min(new, calls - sent)
            if more:
                os.write(self._to, self._request * more)
                sent += more
        return calls / (time.perf_counter() - started)

    def _answers(self) -> int:
        """Wait for answers; return their number."""
        data = os.read(self._from, 65536)
        if not data:
            raise RuntimeError("the server has closed its standard output")
        return data.count(b"\n")


@contextmanager
def serving(command: list[str]) -> Iterator[Peer]:
    with subprocess.Popen(
        command,
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield Peer(process)


def measure(effort: Effort) -> Results:
    results = Results(commands=[typed(command) for command in COMMANDS.values()])
    calls = effort.number(CALLS)
    with serving(COMMANDS["ours"]) as ours, serving(COMMANDS["theirs"]) as theirs:
        peers = {"ours": ours, "theirs": theirs}
        for peer in peers.values():
            peer.round_trips_a_second(16, calls)  # warm-up
        for depth, promise in DEPTHS.items():
            rounds = [
                {side: peers[side].round_trips_a_second(depth, calls) for side in in_turns(peers, number)}
                for number in range(effort.rounds(ROUNDS))
            ]
            case = "one call at a time" if depth == 1 else f"{depth} calls at once"
            results.rows.append(row("stdio", case, rounds, "calls/s", promise=promise))
    return results


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
