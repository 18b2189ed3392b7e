"""The official conformance suite against this project, under each web server: ``make conformance``.

Against several workers too, behind a proxy that leads each request to the next of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mcp import Client
from mcp_types import TextContent, TextResourceContents

from tests.npm import script
from tests.support.asgi_servers import ALL, serving
from tests.support.harness import Process
from tests.support.private_redis import Redis, running_redis
from tests.support.workers import several

CHECKS = {"2025-11-25": 84, "2026-07-28": 152}
"""How many checks the suite makes of a server that lacks nothing, at each version of the protocol."""

SEVERAL = {"uvicorn x 2": ("uvicorn", 2, "pubsub"), "daphne x 4": ("daphne", 4, "core")}
"""Several workers on one Redis, of which each request meets the next."""

APPLICATION = "tests.conformance.asgi"
SUITE = "@modelcontextprotocol/conformance/dist/index.js"
DEADLINE = 120.0


@dataclass
class Run:
    """One run of the suite: a web server and a version of the protocol."""

    server: str
    version: str
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def row(self) -> str:
        passed, failed, warnings = (self.statuses[status] for status in ("SUCCESS", "FAILURE", "WARNING"))
        return f"| {self.server:14} | {self.version} | {passed:6} | {failed:6} | {warnings:8} | {self.seconds:7.1f} |"


def main() -> None:
    """Exits with 1 if anything is not as it has to be."""
    command = script(SUITE)
    began = time.monotonic()
    names = [*ALL, *SEVERAL]
    with running_redis() as redis, ThreadPoolExecutor(len(names)) as pool:
        # Side by side takes half the time, also on two cores, and the suite waits long enough for it.
        runs = [run for runs in pool.map(lambda name: served(name, redis, command), names) for run in runs]
    print("| server         | version    | passed | failed | warnings | seconds |")
    print("| -------------- | ---------- | ------ | ------ | -------- | ------- |")
    for run in runs:
        print(run.row)
    wrong = [f"{run.server}, {run.version}: {line}" for run in runs for line in run.wrong]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"conformance: {'FAILED' if wrong else 'passed'} in {time.monotonic() - began:.1f} s")
    sys.exit(1 if wrong else 0)


def served(name: str, redis: Redis, command: list[str]) -> list[Run]:
    """The suite at each version against the processes of a web server, which then have to end."""
    with listening(name, redis) as (processes, address):
        runs = [suite(name, version, command, f"{address}/mcp") for version in CHECKS]
        last = runs[-1].wrong
        last += asyncio.run(absent(f"{address}/mcp"))
        for process in processes:
            last += ended(process, name)
            last += logged(process)
        if any(run.wrong for run in runs):
            last += [f"the end of its standard error:\n{process.errors[-5000:]}" for process in processes]
    return runs


@contextmanager
def listening(name: str, redis: Redis) -> Iterator[tuple[list[Process], str]]:
    """One process, or several behind a proxy, and the address."""
    env = {"DJANGO_SETTINGS_MODULE": "tests.conformance.settings"}
    if name in SEVERAL:
        server, number, layer = SEVERAL[name]
        with several(server, number, redis, APPLICATION, layer=layer, env=env) as workers:
            yield [worker.process for worker in workers.each], workers.proxy
        return
    with serving(name, APPLICATION, env=env) as (process, address):
        yield [process], address


def suite(server: str, version: str, command: list[str], url: str) -> Run:
    run = Run(server, version)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["server", "--url", url, "--suite", "all", "--spec-version", version, "--output-dir", directory]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=DEADLINE)
        results = {path.parent.name: json.loads(path.read_text()) for path in Path(directory).glob("*/checks.json")}
    run.seconds = time.monotonic() - began
    for scenario, checks in sorted(results.items()):
        for check in checks:
            run.statuses[check["status"]] += 1
            if check["status"] not in ("SUCCESS", "INFO"):
                run.wrong.append(f"{scenario}: {check['id']}: {check['status']}: {check.get('errorMessage')}")
    if run.statuses["SUCCESS"] != CHECKS[version]:
        run.wrong.append(f"{run.statuses['SUCCESS']} checks have passed, and not {CHECKS[version]}")
    if done.returncode != 0:
        run.wrong.append(f"the suite ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return run


async def absent(url: str) -> list[str]:
    """What the suite would not miss: it takes the refusal of an unknown tool for the tool's own error."""
    async with Client(url) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        names |= {resource.uri for resource in (await client.list_resources()).resources}
        if missing := {"test_simple_text", "test_error_handling", "test://watched-resource"} - names:
            return [f"{name} is not there" for name in sorted(missing)]
        simple = await client.call_tool("test_simple_text", {})
        error = await client.call_tool("test_error_handling", {})
        watched = await client.read_resource("test://watched-resource")
    saw = {
        "test_simple_text": [each.text for each in simple.content if isinstance(each, TextContent)],
        "test_error_handling": error.is_error,
        "test://watched-resource": [each.text for each in watched.contents if isinstance(each, TextResourceContents)],
    }
    expected = {
        "test_simple_text": ["This is a simple text response for testing."],
        "test_error_handling": True,
        "test://watched-resource": ["Watched resource content"],
    }
    return [f"{name} answers {saw[name]!r}" for name in saw if saw[name] != expected[name]]


def ended(process: Process, server: str) -> list[str]:
    process.signal(signal.SIGTERM)
    status = process.wait()
    # uvicorn ends by the signal itself, once it has shut down.
    return (
        []
        if status in ((0, -signal.SIGTERM) if server.startswith("uvicorn") else (0,))
        else [f"it ended with {status}"]
    )


def logged(process: Process) -> list[str]:
    """The suite passes a tool that is not there, or that fails, where it does not look at the result."""
    unknown = set(re.findall(r"Unknown tool: (\w+)", process.errors))
    failed = set(re.findall(r"Error executing tool (\w+)", process.errors)) - {"test_error_handling"}
    return [f"the suite asked for {name}" for name in unknown] + [f"{name} has failed" for name in failed]


if __name__ == "__main__":
    main()
