"""How each part measures: both sides in turns, many short rounds, one ratio for each round.

Look at the ratios of CPU time. The absolute figures depend on the machine. Other load on the machine changes how long
a call takes, but hardly how much CPU time it needs.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = ("mcp", "Django", "channels", "daphne", "Twisted", "uvicorn", "asgiref", "anyio", "pydantic", "psycopg")


@dataclass(frozen=True)
class Promise:
    """The ratio that is promised."""

    ratio: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.ratio:g}"

    def is_kept_by(self, ratio: float) -> bool:
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of a sample, and an interval in which the true median lies with a probability of 95 %."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Ratio:
        """The median of the rounds' ratios.

        The interval goes from the k-th smallest value to the k-th largest. The binomial distribution gives k. The
        interval assumes nothing about the distribution of the values. Fewer than six values allow no such interval.
        """
        values, number = sorted(sample), len(sample)
        outside, k = 0.0, 0
        while True:
            outside += math.comb(number, k) / 2**number
            if outside > (1 - CONFIDENCE) / 2:
                break
            k += 1
        interval = (values[k - 1], values[-k]) if k else (0.0, math.inf)
        return cls(median(values), *interval)

    def __str__(self) -> str:
        return f"{self.median:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if self.high < math.inf else "")


@dataclass(frozen=True)
class Row:
    """One line of the table. A side without a figure is None: the case says why."""

    part: str
    case: str
    ratio: Ratio | None
    ours: float | None
    theirs: float | None
    unit: str
    promise: Promise | None = None

    @property
    def verdict(self) -> str:
        if self.promise is None or self.ratio is None:
            return ""
        kept = {self.promise.is_kept_by(end) for end in (self.ratio.low, self.ratio.high)}
        return "undecided" if len(kept) == 2 else "kept" if kept.pop() else "missed"


@dataclass
class Results:
    """The results of a part: lines of the table, series for the plots, and the commands that it ran."""

    rows: list[Row] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    def add(self, other: Results) -> None:
        self.rows += other.rows
        self.series |= other.series
        self.commands += [command for command in other.commands if command not in self.commands]


@dataclass(frozen=True)
class Effort:
    """How much is measured. A quick run shows that everything works; do not use its figures."""

    quick: bool = False

    def rounds(self, whole: int) -> int:
        return 1 if self.quick else whole

    def number(self, whole: int) -> int:
        return max(1, whole // 10) if self.quick else whole


def in_turns(sides: Iterable[str], round_number: int) -> list[str]:
    """The order of the sides in a round. The first side of one round is the last of the next."""
    order = list(sides)
    return order if round_number % 2 else order[::-1]


def row(
    part: str,
    case: str,
    rounds: Sequence[dict[str, float]],
    unit: str,
    *,
    ours: str = "ours",
    theirs: str = "theirs",
    promise: Promise | None = None,
) -> Row:
    """The median of each side, and of the rounds' ratios."""
    return Row(
        part,
        case,
        ratio=Ratio.of([each[ours] / each[theirs] for each in rounds]),
        ours=median(each[ours] for each in rounds),
        theirs=median(each[theirs] for each in rounds),
        unit=unit,
        promise=promise,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def resident_memory(pid: int) -> int:
    """Bytes of memory that a process holds."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Rss:"))) * 1024


def cpu_seconds(pid: int) -> float:
    """The CPU time so far of a process with all its threads, and of its living child processes, in seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # The clock that clock_getcpuclockid(3) names; Python has this function for threads only.
    return time.clock_gettime(~pid << 3 | 2) + sum(cpu_seconds(int(child)) for child in children)


def allow_descriptors(number: int) -> None:
    """Raise the limit of open files, of this process and of those that it starts.

    Raises:
        RuntimeError: the machine allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise RuntimeError(f"{number:,} open files are needed, and the hard limit is {hard:,} (ulimit -Hn).")
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def machine() -> str:
    """The machine and the versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = f"{len(os.sched_getaffinity(0))} cores {model or platform.machine()}, {platform.system()}"
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{cores}. Python {platform.python_version()}, {packages}."
