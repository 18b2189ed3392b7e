"""The web servers of the benchmarks, each in a process of its own: ours, the SDK's application, a bare "hello"."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.harness import DEADLINE, MANAGE, ROOT, Process, environment, reserved_port, running, tcp, wait_until

WEB_SERVERS = ("Daphne", "uvicorn")

_APPLICATIONS = {
    # The handler with an SDK MCPServer, the handler with one of ours, the SDK's application, the smallest application.
    "plain": "bench.mounted:application",
    "django": "bench.mounted:application",
    "bare": "bench.bare:app",
    "hello": "bench.peers_projects.hello:application",
}


@dataclass(frozen=True)
class Served:
    process: Process
    address: str
    command: str
    """The command as one would type it."""


@contextmanager
def serving(web_server: str, side: str, *, json_response: bool = False, folder: Path = ROOT) -> Iterator[Served]:
    """A process that serves one side, once it listens. It imports the package from ``folder``."""
    with reserved_port() as port:
        command, changes = _command(web_server, side, port)
        changes |= {"BENCH_JSON": str(int(json_response)), "BENCH_CLASS": "ours" if side == "django" else "sdk"}
        with listening(command, port, environment(TEST_DEBUG="0", **changes), folder) as served:
            yield served


@contextmanager
def listening(command: list[str], port: int, env: dict[str, str], folder: Path = ROOT) -> Iterator[Served]:
    """A process, once it listens on the port."""
    with running(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder) as process:
        wait_until(lambda: _listens(port, process), f"{shlex.join(command)} listens", DEADLINE)
        yield Served(process, f"http://127.0.0.1:{port}", typed(command, port))


def uvicorn(application: str, port: int, python: str = sys.executable) -> list[str]:
    # A connection is idle while the other sides are measured, for longer than uvicorn's default of five seconds.
    quiet = ["--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "600"]
    return [python, "-m", "uvicorn", *quiet, "--port", str(port), application]


def daphne(application: str, port: int, python: str = sys.executable) -> list[str]:
    # Without an access log, which a Daphne server has only if it is configured.
    return [python, "-m", "daphne", "-v", "0", "-b", "127.0.0.1", "-p", str(port), application]


RUNMCP = [*MANAGE, "runmcp", "--transport", "http"]


def _command(web_server: str, side: str, port: int) -> tuple[list[str], dict[str, str]]:
    if web_server == "uvicorn":
        return uvicorn(_APPLICATIONS[side], port), {}
    if side in ("plain", "django"):
        names = {"SERVER": "bench.mounted.server", "HTTP_SERVER": "bench.mounted.build_daphne"}
        return RUNMCP, {"TEST_MCP_SERVING": json.dumps(names), "TEST_ENDPOINTS": tcp(port)}
    return daphne({"bare": "bench.bare:for_daphne"}.get(side, _APPLICATIONS[side]), port), {}


def _listens(port: int, process: Process) -> bool:
    if process.popen.poll() is not None:
        raise AssertionError(f"it has ended:\n{process.errors}")
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def typed(command: list[str], port: int | None = None) -> str:
    """A command as one would type it: with ``python``, and port 8000."""
    words = {sys.executable: "python", str(port): "8000"}
    return " ".join(shlex.quote(words.get(part, part.removeprefix(f"{ROOT}/"))) for part in command)
