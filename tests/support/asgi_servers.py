"""The test project's router under each way of serving it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.support.daphne_limits import accepts
from tests.support.harness import Process, environment, reserved_port, running, serving_http, wait_until

DAPHNE = ["runmcp", "daphne"]

COMMANDS = {
    "daphne": "daphne --bind 127.0.0.1",
    "uvicorn": "uvicorn --loop asyncio --http h11",
    "uvicorn-uvloop": "uvicorn --loop uvloop --http httptools",
    "hypercorn": "hypercorn",
    "granian": "granian --interface asgi",
}
"""As docs/servers.md shows them, but for the address."""

LISTENING = {
    "daphne": r"Listening on TCP address ([\d.]+:\d+)",
    "uvicorn": r"Uvicorn running on http://([\d.]+:\d+)",
    "uvicorn-uvloop": r"Uvicorn running on http://([\d.]+:\d+)",
    "hypercorn": r"Running on http://([\d.]+:\d+)",
}
"""What they print when they listen; granian prints the port that it was given, which is no help where that is 0."""

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
    with ExitStack() as stack:
        port = 0 if server in LISTENING else stack.enter_context(reserved_port())
        address = ["--bind", f"127.0.0.1:{port}"] if server == "hypercorn" else ["--port", str(port)]
        command = [sys.executable, "-m", *COMMANDS[server].split(), *address, *options, f"{module}:application"]
        env = environment(**(env or {}))
        # A group of its own, because some have workers, which would outlive them.
        process = stack.enter_context(running(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True))
        stack.callback(_end_group, process)
        if server in LISTENING:
            yield process, address_of(process, server)
        else:
            wait_until(lambda: process.popen.poll() is not None or accepts(port), f"{server} accepts connections")
            assert process.popen.poll() is None, process.errors
            yield process, f"http://127.0.0.1:{port}"


def address_of(process: Process, server: str) -> str:
    """The address of one of ``LISTENING``, once it listens."""
    return f"http://{process.wait_for(LISTENING[server])[1]}"


def _end_group(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
