"""Other ways to serve MCP from a Django project, with the same tool and the same client.

    python -m bench.peers

Each peer has an environment of its own below ``.venv/peers``. It has the version that ``peers_projects/requirements``
pins, and the web servers, the Django and the SDK of this environment. The first run installs them from PyPI. A plain
Django view and a bare ASGI "hello" show what Django and the web server need without MCP. If a peer cannot do
something, its row of the table says why.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version

from bench.clients import Connection, Load, get, open_connections, open_session, post, rounds_of, rows_of
from bench.measuring import Effort, Ratio, Results, Row, cpu_seconds, in_turns, resident_memory, row
from bench.servers import RUNMCP, WEB_SERVERS, Served, daphne, listening, uvicorn
from tests.support.harness import INITIALIZE, ROOT, call, environment, reserved_port, tcp

ROUNDS = 21
REQUESTS = 160
"""For each side in each round."""
AT_ONCE = 16
STARTS = 7
SESSIONS = 1_000
IN_FLIGHT = 100
WAIT = 2.0
"""Seconds that a call needs which is in flight at the signal. The signal arrives after half of them."""
PATIENCE = 30.0
"""Seconds to wait for an answer."""
WARM_UP = 50
"""Sessions that are opened before the memory is measured."""

ENVIRONMENTS = ROOT / ".venv" / "peers"
REQUIREMENTS = ROOT / "bench" / "peers_projects" / "requirements"
WITH = ("Django", "daphne", "uvicorn", "httptools", "uvloop")
"""Installed next to each peer."""
IF_NEEDED = ("Twisted", "asgiref", "mcp", "pydantic", "anyio", "starlette")
"""Installed only if the peer needs them. Both have the versions of this environment."""


class CannotServeError(Exception):
    """Why a side cannot be measured. Its row of the table shows this text."""


@dataclass(frozen=True)
class Side:
    """One way to serve the tool, and the Python that runs it."""

    name: str
    """The name of its module in ``peers_projects``."""
    title: str
    python: str = sys.executable

    @property
    def request(self) -> bytes:
        return get("/") if self.name == "hello" else post(call(1, "echo", modern=True, text="round trip"))

    @property
    def expected(self) -> bytes:
        return b"hello" if self.name == "hello" else b"round trip"


OURS = Side("ours", "ours")
LIMITS = (  # what Django and the web server need without MCP
    Side("plain", "a plain Django view"),
    Side("hello", 'a bare ASGI "hello"'),
)
PEERS = ("mcpz", "stateless", "drf", "fastmcp")


def measure(effort: Effort) -> Results:
    results, peers = Results(), []
    for name in PEERS:
        try:
            peers.append(Side(name, title_of(name), _installed(name)))
        except CannotServeError as reason:
            results.rows.append(_unserved("peers", title_of(name), reason))
    sides = [OURS, *peers, *LIMITS]
    for web_server in WEB_SERVERS:
        results.add(asyncio.run(_calls(web_server, sides, effort)))
    results.rows += _starts(sides, effort)
    results.rows += asyncio.run(_memory([OURS, *peers], effort.number(SESSIONS)))
    for web_server in WEB_SERVERS:
        results.rows += asyncio.run(_shutdown(web_server, [OURS, *peers, LIMITS[0]], effort.number(IN_FLIGHT)))
    return results


# Environments


def title_of(name: str) -> str:
    """A peer with its pinned version, from the first line of its requirements."""
    return (REQUIREMENTS / f"{name}.txt").read_text().splitlines()[0].replace("==", " ")


def _installed(name: str) -> str:
    """The Python of a peer's environment, which is made if there is none with these versions.

    Raises:
        CannotServeError: it cannot be installed.
    """
    folder, requirements = ENVIRONMENTS / name, REQUIREMENTS / f"{name}.txt"
    python, constraints, ready = folder / "bin" / "python", folder / "constraints.txt", folder / ".ready"
    pins, limits = ([f"{package}=={version(package)}" for package in packages] for packages in (WITH, IF_NEEDED))
    wanted = "\n".join([requirements.read_text(), *pins, *limits])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {title_of(name)} ...", end=" ", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        constraints.write_text("\n".join(limits))
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command = [*pip, "--requirement", str(requirements), "--constraint", str(constraints), *pins]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CannotServeError(f"cannot be installed: {errors_in(done.stderr)[0]}")
        ready.write_text(wanted)
    return str(python)


def errors_in(output: str) -> list[str]:
    """The lines of pip's output, a traceback or a log that name an error. Without any, the last line."""
    found = re.findall(r"^.*?\b((?:ERROR|\w+Error): [^│\n]*[^│\s])", output, re.MULTILINE)
    return found or output.strip().splitlines()[-1:] or ["no message"]


# Servers


@contextmanager
def _serving(web_server: str, side: Side) -> Iterator[Served]:
    """A process that serves the side, once it has answered.

    Raises:
        CannotServeError: it does not start, or does not answer with the tool's text.
    """
    with reserved_port() as port, ExitStack() as stack:
        runmcp = web_server == "Daphne" and side is OURS
        by_command = daphne if web_server == "Daphne" else uvicorn
        command = RUNMCP if runmcp else by_command(f"bench.peers_projects.{side.name}:application", port, side.python)
        env = environment(
            DJANGO_SETTINGS_MODULE="bench.peers_projects.settings",
            BENCH_PEER=side.name,
            BENCH_ENDPOINTS=tcp(port),
            COLUMNS="200",  # FastMCP breaks the lines of its log
        )
        try:
            served = stack.enter_context(listening(command, port, env))
        except AssertionError as error:
            raise CannotServeError(f"does not start: {errors_in(str(error))[-1]}") from None
        answer = _first_answer(served.address, side.request)
        if side.expected not in answer:
            raise CannotServeError(f"does not answer: {_status(answer)} ({errors_in(served.process.errors)[-1]})")
        yield served


def _first_answer(address: str, request: bytes) -> bytes:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        return connection.makefile("rb").read()


def _status(answer: bytes) -> str:
    return answer.partition(b"\r\n")[0].decode()


@contextmanager
def _all_serving(web_server: str, sides: list[Side], unserved: list[Row]) -> Iterator[dict[Side, Served]]:
    """A process for each side that can serve. The others get a row in ``unserved``."""
    with ExitStack() as stack:
        serving = {}
        for side in sides:
            try:
                serving[side] = stack.enter_context(_serving(web_server, side))
            except CannotServeError as reason:
                unserved.append(_unserved(f"peers, {web_server}", side.title, reason))
        yield serving


def _unserved(part: str, title: str, reason: Exception) -> Row:
    return Row(part, f"{title} {reason}", None, None, None, "")


# What is measured


async def _calls(web_server: str, sides: list[Side], effort: Effort) -> Results:
    part, results, loads = f"peers, {web_server}", Results(), {}
    with _all_serving(web_server, sides, results.rows) as serving:
        results.commands = [served.command for served in serving.values()]
        for side, served in serving.items():
            connections = [(await Connection.open(served.address), side.request) for _ in range(AT_ONCE)]
            loads[side.name] = Load(connections, side.expected, [served.process.pid])
        rounds = await rounds_of(loads, REQUESTS, ROUNDS, effort, AT_ONCE)
        for side in serving:
            if side is not OURS:
                case = f"tools/call of 2026-07-28, against {side.title}"
                results.rows += rows_of(part, case, rounds, theirs=side.name)
    return results


def _starts(sides: list[Side], effort: Effort) -> list[Row]:
    """From the start of the process to its first answer."""
    rounds: list[dict[str, tuple[float, float]]] = []
    by_name = {side.name: side for side in sides}
    for number in range(effort.rounds(STARTS)):
        took = {}
        for name in in_turns(by_name, number):
            began = time.perf_counter()
            with suppress(CannotServeError), _serving("uvicorn", by_name[name]) as served:
                took[name] = (time.perf_counter() - began, cpu_seconds(served.process.pid))
        rounds.append(took)
    rows = []
    for side in sides:
        if side is OURS or side.name not in rounds[0]:
            continue
        for index, unit in enumerate(("s", "s of CPU")):
            figures = [{name: took[index] for name, took in each.items()} for each in rounds]
            case = f"start to the first answer, against {side.title}"
            rows.append(row("peers, uvicorn", case, figures, unit, theirs=side.name))
    return rows


async def _memory(sides: list[Side], number: int) -> list[Row]:
    """The growth of each process with so many open sessions of 2025-11-25."""
    rows: list[Row] = []
    ours = None
    with _all_serving("uvicorn", sides, []) as serving:
        for side, served in serving.items():
            try:
                grown = await _growth(served, number)
            except CannotServeError as reason:
                rows.append(_unserved("peers, uvicorn", side.title, reason))
                continue
            if side is OURS:
                ours = grown
                continue
            ratio = Ratio.of([ours / grown]) if ours else None
            case = f"each open session of 2025-11-25, at {number:,}, against {side.title}"
            rows.append(Row("peers, uvicorn", case, ratio, ours, grown, "kB"))
    return rows


async def _growth(served: Served, number: int) -> float:
    """Kilobytes for each session.

    Raises:
        CannotServeError: it has no sessions, or forgets them.
    """
    connection = await Connection.open(served.address)
    answer = await connection.exchange(post(INITIALIZE))
    if b"mcp-session-id" not in answer.lower():
        raise CannotServeError(f"has no sessions: initialize gets {_status(answer)} and no session id")
    sessions = [await open_session(connection) for _ in range(WARM_UP)]
    before = resident_memory(served.process.pid)
    sessions += [await open_session(connection) for _ in range(number)]
    grown = resident_memory(served.process.pid) - before
    for session in (sessions[0], sessions[-1]):
        answer = await connection.exchange(post(call(1, "echo", text="round trip"), session))
        if b"round trip" not in answer:
            raise CannotServeError(f"does not keep {number:,} sessions: a call gets {_status(answer)}")
    connection.close()
    return grown / number / 1000


async def _shutdown(web_server: str, sides: list[Side], number: int) -> list[Row]:
    """How many calls in flight are answered after SIGTERM."""
    part, rows = f"peers, {web_server}", []
    with _all_serving(web_server, sides, []) as serving:
        answers = await asyncio.gather(*(_answered_after_sigterm(served, number) for served in serving.values()))
        answered = dict(zip(serving, answers, strict=True))
        for side, theirs in answered.items():
            if side is not OURS:
                case = f"{number} calls in flight at SIGTERM: answered, against {side.title}"
                rows.append(Row(part, case, None, answered.get(OURS), theirs, "answers"))
    return rows


async def _answered_after_sigterm(served: Served, number: int) -> int:
    connections = [each async for each in open_connections(served.address, number)]
    request = post(call(1, "wait", modern=True, seconds=WAIT))
    calls = [asyncio.ensure_future(_is_answered(connection, request)) for connection in connections]
    await asyncio.sleep(WAIT / 2)
    served.process.signal(signal.SIGTERM)
    answered = sum(await asyncio.gather(*calls))
    for connection in connections:
        connection.close()
    return answered


async def _is_answered(connection: Connection, request: bytes) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            return b"waited" in await connection.exchange(request)
    except (ConnectionError, TimeoutError):
        return False


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
