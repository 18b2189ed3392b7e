"""The test project's router under each way of serving it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness import Process, environment, free_port, running, serving_http

DAPHNE = ["runmcp", "daphne"]
ALL = [*DAPHNE, "uvicorn"]


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
    port = str(free_port())
    command, ready = {
        "daphne": (["daphne", "--bind", "127.0.0.1", "--port", port], "Listening on TCP"),
        "uvicorn": (["uvicorn", "--port", port], "Uvicorn running on"),
    }[server]
    command = [sys.executable, "-m", *command, *options, f"{module}:application"]
    with running(command, env=environment(**(env or {})), stdout=subprocess.DEVNULL) as process:
        process.wait_for(ready)
        yield process, f"http://127.0.0.1:{port}"
