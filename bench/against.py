"""The CPU time of calls with the current files, against an earlier commit.

    python -m bench --against HEAD~3

Use it for a change of code that every call runs. The benchmark, the client and the dependencies are the same on both
sides. Only the package ``mcp_serving`` differs.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import stdio
from bench.clients import rounds_of, rows_of
from bench.measuring import Effort, Results
from bench.mount import AT_ONCE, GENERATIONS, REQUESTS, ROUNDS, load_of
from bench.servers import WEB_SERVERS, serving
from tests.support.harness import ROOT, environment

PACKAGE = "mcp_serving"


def measure(commit: str, effort: Effort) -> Results:
    """Compare the package with that of a commit.

    Raises:
        SystemExit: git does not know the commit.
    """
    with tempfile.TemporaryDirectory(prefix="mcp-serving-against-") as folder:
        _check_out(commit, Path(folder))
        results = Results()
        for web_server in WEB_SERVERS[-1:] if effort.quick else WEB_SERVERS:
            for json_response in (True,) if effort.quick else (True, False):
                results.add(asyncio.run(_calls(web_server, json_response, Path(folder), effort)))
        sides = {"ours": (stdio.COMMANDS["ours"], ROOT), "theirs": (stdio.COMMANDS["ours"], Path(folder))}
        results.add(stdio.compare(sides, effort, promised=False))
        return results


def _check_out(commit: str, folder: Path) -> None:
    done = subprocess.run(["git", "archive", commit, PACKAGE], cwd=ROOT, capture_output=True)
    if done.returncode:
        sys.exit(f"--against {commit}: {done.stderr.decode().strip()}")
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=done.stdout, check=True)
    # "python -m" looks for modules in the working directory first: there, it finds the package of the commit.
    show = [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
    imported = subprocess.run(show, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    assert imported.stdout.startswith(str(folder)), imported.stdout


async def _calls(web_server: str, json_response: bool, folder: Path, effort: Effort) -> Results:
    with ExitStack() as stack:
        served = {
            side: stack.enter_context(serving(web_server, "django", json_response=json_response, folder=where))
            for side, where in {"ours": ROOT, "theirs": folder}.items()
        }
        results = Results(commands=[each.command for each in served.values()])
        for generation in GENERATIONS:
            loads = {side: await load_of(side, each, generation, json_response) for side, each in served.items()}
            rounds = await rounds_of(loads, REQUESTS, ROUNDS, effort, AT_ONCE)
            case = f"{'JSON' if json_response else 'SSE'}, {generation}"
            results.rows += rows_of(f"mount, {web_server}", case, rounds)
            for load in loads.values():
                load.close()
        return results
