"""The test project's router under each way of serving it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.daphne_limits import accepts
from tests.support.harness import Process, environment, free_port, running, serving_http, wait_until

DAPHNE = ["runmcp", "daphne"]

COMMANDS = {
    "daphne": "daphne --bind 127.0.0.1",
    "uvicorn": "uvicorn --loop asyncio --http h11",
    "uvicorn-uvloop": "uvicorn --loop uvloop --http httptools",
    "hypercorn": "hypercorn",
    "granian": "granian --interface asgi",
}
"""As docs/servers.md shows them, but for the address."""

ALL = ["runmcp", *COMMANDS]


@contextmanager
def serving(
    server: str, module: str = "tests.project.asgi", *options: str, env: dict[str, str] | None = None
) -> Iterator[tuple[Process, str]]:
    """A process that serves ``application`` of a module, once it listens, and its address."""
    if server == "runmcp":
        builder = "tests.project.serving" if module == "tests.project.asgi" else module
        with serving_http("--http-server", f"{builder}.build_daphne", *options, env=env) as served:
            yield served
        return
    port = free_port()
    address = ["--bind", f"127.0.0.1:{port}"] if server == "hypercorn" else ["--port", str(port)]
    command = [sys.executable, "-m", *COMMANDS[server].split(), *address, *options, f"{module}:application"]
    # A group of its own, because some have workers, which would outlive them.
    with running(command, env=environment(**(env or {})), stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            wait_until(lambda: process.popen.poll() is not None or accepts(port), f"{server} accepts connections")
            assert process.popen.poll() is None, process.errors
            yield process, f"http://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
