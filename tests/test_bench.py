"""That the benchmarks run: what they measure is theirs to say."""

from __future__ import annotations

import subprocess
import sys

from bench import report
from bench.measuring import Effort, Promise, Results, Row, in_turns, row
from tests.harness import ROOT


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def test_one_part_in_a_quick_run_prints_its_lines_of_the_table() -> None:
    done = bench("--quick", "--only", "stdio")
    assert done.returncode == 0, done.stderr
    assert "≥ 1.5" in done.stdout
    assert "stdio: 16 calls at once" in done.stdout
    assert "of 2 promised ratios are kept" in done.stdout


def test_the_page_is_written_from_all_parts_only() -> None:
    done = bench("--write", "--only", "stdio")
    assert done.returncode == 2
    assert "--write needs all parts" in done.stderr


def test_a_ratio_is_taken_within_each_round_and_its_median_shown() -> None:
    rounds = [{"ours": 10.0, "theirs": 5.0}, {"ours": 90.0, "theirs": 30.0}, {"ours": 4.0, "theirs": 4.0}]
    found = row("a part", "a case", rounds, "calls/s", promise=Promise(2.5))
    assert (found.ratio, found.ours, found.theirs, found.verdict) == (2.0, 10.0, 5.0, "missed")


def test_a_promise_of_at_most_is_kept_by_less() -> None:
    assert Promise(1.1, at_most=True).is_kept_by(1.0)
    assert not Promise(1.1, at_most=True).is_kept_by(1.2)


def test_who_is_first_in_one_round_is_last_in_the_next() -> None:
    assert in_turns("abc", 0) == list(reversed(in_turns("abc", 1)))


def test_the_page_has_a_section_with_its_table_for_each_part() -> None:
    rows = [
        Row("stdio", "one call at a time", 2.5, 5000.0, 2000.0, "calls/s", Promise(1.5)),
        Row("shutdown", "1 call in flight: lost", None, 0, 1, "answers"),
    ]
    page = report.document(Results(rows, commands=["python -m django runmcp"]), Effort(), minutes=7.4)
    assert "1 of 1 promised ratios are kept" in page
    assert "| 2.50 | ≥ 1.5 | kept | 5,000 | 2,000 | calls/s | stdio: one call at a time |" in page
    assert "|  |  |  | 0 | 1 | answers | shutdown: 1 call in flight: lost |" in page
    assert "It took 7 minutes" in page
