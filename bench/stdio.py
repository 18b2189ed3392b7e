"""Round trips a second over stdio: ``runmcp`` beside the SDK's own ``run("stdio")``.

    python -m bench.stdio

Both serve the same server object and run at the same time; the same client, which handles bytes only,
takes turns between them. What counts are the ratios: the absolute numbers are the machine's.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from statistics import median
from typing import Any

from tests.harness import INITIALIZE, INITIALIZED, MANAGE, ROOT, call, environment

COMMANDS = {
    "runmcp": [*MANAGE, "runmcp"],
    "SDK": [sys.executable, "-c", "from tests.project.mcp import server; server.run('stdio')"],
}
DEPTHS = {1: 1.5, 16: 2.0}
"""Requests in flight at once, and the ratio that is promised."""
ROUNDS = 7
CALLS = 1_500


def line_of(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Peer:
    """One server process, talked to in bytes through its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._request = line_of(call(1, "immediate", text="round trip"))
        os.write(self._to, line_of(INITIALIZE))
        self._answers()
        os.write(self._to, line_of(INITIALIZED))

    def round_trips_a_second(self, depth: int, calls: int = CALLS) -> float:
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
        """Wait for answers; how many have come."""
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


def measure() -> dict[int, dict[str, float]]:
    """For each depth, the median round trips a second of each server."""
    with serving(COMMANDS["runmcp"]) as ours, serving(COMMANDS["SDK"]) as theirs:
        peers = {"runmcp": ours, "SDK": theirs}
        for peer in peers.values():
            peer.round_trips_a_second(16)  # warm-up
        return {depth: _medians(peers, depth) for depth in DEPTHS}


def _medians(peers: dict[str, Peer], depth: int) -> dict[str, float]:
    rounds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, peer in peers.items():
            rounds[name].append(peer.round_trips_a_second(depth))
    return {name: median(rates) for name, rates in rounds.items()}


def main() -> None:
    print(f"{'in flight':>9}  {'ratio':>6}  {'promised':>8}  {'runmcp/s':>9}  {'SDK/s':>9}")
    for depth, rates in measure().items():
        ratio = rates["runmcp"] / rates["SDK"]
        print(f"{depth:>9}  {ratio:>6.2f}  {DEPTHS[depth]:>8}  {rates['runmcp']:>9,.0f}  {rates['SDK']:>9,.0f}")
    packages = ", ".join(f"{name} {version(name)}" for name in ("mcp", "anyio", "Django"))
    print(f"Medians of {ROUNDS} rounds of {CALLS:,} calls. Python {platform.python_version()}, {packages}.")


if __name__ == "__main__":
    main()
