"""That the benchmarks run: what they measure is theirs to say."""

from __future__ import annotations

import gc
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from bench import peers, report
from bench.__main__ import PARTS, main
from bench.measuring import Effort, Promise, Ratio, Results, Row, cpu_seconds, in_turns, row
from bench.plots import CAPTIONS
from tests.support.documents import links
from tests.support.harness import ROOT
from tests.support.nginx import needs_nginx


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def bench_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """The benchmarks in this process, so that their servers are forked."""

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        main()
        gc.collect()  # fails here, and not in the next test, if a connection was left open

    gc.freeze()  # each turn collects garbage, and would visit all objects of the tests
    yield run
    gc.unfreeze()


LINES = {
    "mount": (
        "ms, p99  mount, uvicorn: JSON, 2025-11-25",
        "µs of CPU  mount, Daphne: SSE, 2026-07-28",
        "against hello",
        "≤ 1.08",
    ),
    "orm": ("sync tool, one query: CONN_MAX_AGE=60, 16 at once", "≤ 1"),
    "preview": ("write tool, confirmed: with a preview, against without",),
    "calls": ("calls: the app that stores it, against nothing", "≤ 1.03"),
    "stdio": ("stdio: 16 calls at once", "≥ 3", "of 2 promised ratios are kept"),
    "start": ("runmcp to its first tools/list", "check with the app, against without", "s of CPU", "≤ 1.05"),
    "idle": (
        "each idle session, at 500",
        "each open stream of a session, at 500",
        "calls of 2026-07-28 with 500",
        "≤ 1.05",
    ),
    "shutdown": ("100 calls in flight: lost", "last answer to exit, against uvicorn"),
    "relay": (
        "ms, p99  relay: 2 workers, pubsub: round robin, against sticky",
        "2 workers, pubsub: every call relayed, against local",
        "messages  relay: one call at a time, pubsub, relayed, against local: each call",
    ),
    "notifications": (
        "notifications: 100 subscribers on 4 workers, against 1: published, and received by all",
        "until the last has it",
    ),
    "growth": (
        "µs of CPU  growth: 200 connections, Daphne, against 1",
        "calls/s  growth: 200 connections, uvicorn, against 1",
        "SQL queries  growth: tools/list with 100 tools, with permissions, against 10: each call",
        "2 of 2 promised ratios are kept",
        "ms of CPU for 1 MB  growth: a result of 1 MB, against 1 kB",
        "µs of CPU  growth: 2 workers, against 1 worker",
    ),
}
"""What each part's quick form prints, among others. The peers would have to be installed from PyPI first."""

NEEDED = {"orm": "postgres", "preview": "postgres", "calls": "postgres", "relay": "redis", "notifications": "redis"}


@pytest.mark.process
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=needs_nginx if part == "relay" else ()) for part in PARTS if part != "peers"]
)
def test_a_quick_run_of_a_part_prints_its_lines_of_the_table_and_what_was_run_on(
    part: str, request: pytest.FixtureRequest, bench_here: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    if part in NEEDED:
        request.getfixturevalue(NEEDED[part])  # skips where there is none
    bench_here("--quick", "--only", part)
    printed = capsys.readouterr().out
    for line in LINES[part]:
        assert line in printed
    assert "promised ratios are kept" in printed
    assert "Python 3." in printed
    assert "mcp 2." in printed


@pytest.mark.process
def test_make_runs_them_although_there_is_a_folder_of_that_name() -> None:
    done = subprocess.run(["make", "--dry-run", "bench", "ARGS=--quick"], cwd=ROOT, capture_output=True, text=True)
    assert "-m bench --quick\n" in done.stdout


@pytest.mark.process
def test_the_page_is_written_from_all_parts_only() -> None:
    done = bench("--write", "--only", "stdio")
    assert done.returncode == 2
    assert "--write needs all parts" in done.stderr


@pytest.mark.process
def test_two_commits_are_compared(bench_here: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    bench_here("--quick", "--against", "HEAD")
    printed = capsys.readouterr().out
    for line in ("µs of CPU  mount, uvicorn: JSON, 2025-11-25", "calls/s of CPU  stdio: 16 calls at once"):
        assert line in printed
    with pytest.raises(SystemExit, match=r"^--against no-such-commit: fatal: not a valid object name: no-such-commit$"):
        bench_here("--against", "no-such-commit")
    assert capsys.readouterr() == ("", "calls ... ")


def test_a_ratio_is_taken_within_each_round_and_its_median_shown() -> None:
    rounds = [{"ours": 10.0, "theirs": 5.0}, {"ours": 90.0, "theirs": 30.0}, {"ours": 4.0, "theirs": 4.0}]
    found = row("a part", "a case", rounds, "calls/s")
    assert found.ratio is not None
    assert (found.ratio.median, found.ours, found.theirs) == (2.0, 10.0, 5.0)


@pytest.mark.parametrize(
    ("number", "interval"),
    [(1, (0, math.inf)), (5, (0, math.inf)), (6, (1, 6)), (9, (2, 8)), (25, (8, 18)), (31, (10, 22))],
)
def test_the_interval_of_a_ratio_is_that_of_the_binomial_distribution(
    number: int, interval: tuple[float, float]
) -> None:
    found = Ratio.of([float(value) for value in range(number, 0, -1)])
    assert (found.low, found.high) == interval
    assert found.median == (number + 1) / 2


@pytest.mark.parametrize(
    ("promise", "verdict"), [(Promise(0.9), "kept"), (Promise(1.3), "missed"), (Promise(1.1), "undecided")]
)
def test_a_promise_within_the_interval_is_undecided(promise: Promise, verdict: str) -> None:
    assert Row("a part", "a case", Ratio(1.1, 1.0, 1.2), 11, 10, "calls/s", promise).verdict == verdict


@pytest.mark.process
def test_the_cpu_time_of_a_process_is_that_of_its_threads_and_child_processes_too() -> None:
    script = (
        "import subprocess, sys, threading, time\n"
        "def work():\n"
        "    while time.thread_time() < 0.3: pass\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "child = 'import time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True); input()'\n"
        "subprocess.run([sys.executable, '-c', child])\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.6 <= cpu_seconds(process.pid) < 5
        process.communicate(b"\n")


def test_a_promise_of_at_most_is_kept_by_less() -> None:
    assert Promise(1.1, at_most=True).is_kept_by(1.0)
    assert not Promise(1.1, at_most=True).is_kept_by(1.2)


def test_who_is_first_in_one_round_is_last_in_the_next() -> None:
    assert in_turns("abc", 0) == list(reversed(in_turns("abc", 1)))


def test_the_page_has_a_section_with_its_table_for_each_part() -> None:
    rows = [
        Row("stdio", "one call at a time", Ratio(2.5, 2.4, 2.6), 5000.0, 2000.0, "calls/s", Promise(1.5)),
        Row("shutdown", "1 call in flight: lost", None, 0, 1, "answers"),
    ]
    page = report.document(Results(rows, commands=["python -m django runmcp"]), Effort(), minutes=7.4)
    assert "1 of 1 promised ratios are kept" in page
    assert "| 2.50 (2.40 to 2.60) | ≥ 1.5 | kept | 5,000 | 2,000 | calls/s | stdio: one call at a time |" in page
    assert "|  |  |  | 0 | 1 | answers | shutdown: 1 call in flight: lost |" in page
    assert "It took 7.4 minutes" in page


def test_the_page_shows_the_plots_that_there_are_and_no_others() -> None:
    shown = {link for link in links(report.DOCUMENT) if link.endswith(".svg")}
    assert shown == {f"benchmarks/{name}.svg" for name in CAPTIONS}
    assert {f"benchmarks/{plot.name}" for plot in report.PLOTS.iterdir()} == shown
    for plot in shown:
        assert (report.DOCUMENT.parent / plot).read_text().lstrip().startswith("<?xml")


def test_the_page_has_every_part_and_what_was_written_by_hand() -> None:
    page = report.DOCUMENT.read_text()
    for heading in report.NOTES:
        assert f"\n## {heading.capitalize()}" in page
    assert report.EXPLAINED.read_text().rstrip() in page
    assert "```console\npython -m django runmcp" in page


@pytest.mark.parametrize("name", peers.PEERS)
def test_each_peer_has_a_project_and_pinned_versions(name: str) -> None:
    assert (peers.REQUIREMENTS.parent / f"{name}.py").exists()
    pins = (peers.REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    assert pins
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in pins)
    assert peers.title_of(name) == pins[0].replace("==", " ")


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        (
            "WARNING: slow\nERROR: No match for x==1\nERROR: Impossible\n",
            ["ERROR: No match for x==1", "ERROR: Impossible"],
        ),
        ("Traceback:\n  File\nValueError: too short\n", ["ValueError: too short"]),
        ("  │ RuntimeError: not initialized.   │\n  ╰────╯\n", ["RuntimeError: not initialized."]),
        ("something else\n", ["something else"]),
        ("", ["no message"]),
    ],
)
def test_the_reason_of_a_peer_that_cannot_serve_is_an_error_of_its_output(output: str, errors: list[str]) -> None:
    assert peers.errors_in(output) == errors


def test_a_row_without_figures_says_why() -> None:
    reason = Row("peers, Daphne", "a peer does not answer: HTTP/1.1 500", None, None, None, "")
    page = report.document(Results([reason]), Effort(), minutes=1)
    assert "|  |  |  |  |  |  | peers, Daphne: a peer does not answer: HTTP/1.1 500 |" in page
