"""The mount under every way of serving it: the server's lifespan is entered once, and left once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.support.asgi_servers import ALL, address_of, serving
from tests.support.harness import (
    MODERN_META,
    ROOT,
    Notes,
    Process,
    call,
    environment,
    reserved_port,
    runmcp,
    running,
    serving_http,
    tcp,
    wait_until,
)
from tests.support.http_client import Clients
from tests.support.raw_http import Request, headers_of, open_session, post
from tests.web_servers.test_back_pressure import flooding

pytestmark = pytest.mark.process

WAYS = [*[(server, ()) for server in ALL], ("uvicorn", ("--lifespan", "off"))]
"""With the last, as under Daphne, nobody tells the handler when to start and when to stop."""

STATE = call(1, "state", modern=True)
LISTEN = {
    "jsonrpc": "2.0",
    "id": 9,
    "method": "subscriptions/listen",
    "params": {"_meta": MODERN_META, "notifications": {"toolsListChanged": True}},
}


async def first_requests(address: str, number: int) -> list[int]:
    """The statuses of calls that are made at the same moment."""
    statuses: list[int] = []
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_connections=number), timeout=20) as client:

        async def ask() -> None:
            statuses.append((await client.post(f"{address}/mcp", json=STATE, headers=headers_of(STATE))).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(number):
                group.start_soon(ask)
    return statuses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    ("server", "options"), WAYS, ids=lambda value: value if isinstance(value, str) else "".join(value)
)
def test_the_lifespan_is_entered_once_and_left_once_by_the_task_that_entered_it(
    server: str, options: tuple[str, ...], number: signal.Signals, notes: Notes
) -> None:
    with serving(server, "tests.project.asgi", *options, env=notes.env) as (process, address):
        assert anyio.run(first_requests, address, 100) == [200] * 100
        session = open_session(address, "/mcp")
        post(address, "/mcp", call(2, "echo", text="leaves a worker thread behind"), session).read()
        process.signal(number)
        process.wait(10)
        assert "Traceback" not in process.errors
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_without_the_lifespan_protocol_too_calls_are_answered_and_streams_ended(notes: Notes) -> None:
    with serving("uvicorn", "tests.project.asgi", "--lifespan", "off", env=notes.env) as (process, address):
        session = open_session(address, "/mcp")
        stream = Request(address, "/mcp", headers={"Accept": "text/event-stream", "Mcp-Session-Id": session})
        listening = post(address, "/mcp", LISTEN)
        asked = post(address, "/mcp", call(1, "slow", modern=True, seconds=1), wait=False)
        notes.wait_for("slow started")
        process.signal(signal.SIGTERM)
        assert b"slow finished" in asked.answered().read()
        assert stream.response.read() == b""
        assert b'"result"' in listening.response.read()
        process.wait(5)
        assert "Traceback" not in process.errors
        for request in (stream, listening, asked):
            request.leave()
    assert notes.all()[-1] == "lifespan left"


def test_uvicorn_ends_at_its_limit_although_clients_of_mcp_do_not_read(notes: Notes) -> None:
    async def talk(address: str, process: Process) -> None:
        async with Clients(address) as clients:
            for how in ("2025-11-25", "2026-07-28"):
                await (await flooding(clients, how)).head()
            process.signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 10)

    setting = {"SERVER": "tests.project.mcp.server", "SHUTDOWN_TIMEOUT": 0.5}
    env = {**notes.env, "TEST_MCP_SERVING": json.dumps(setting)}
    limit = ("--timeout-graceful-shutdown", "1")
    with serving("uvicorn", "tests.project.asgi", *limit, env=env) as (process, address):
        asyncio.run(talk(address, process))
        assert "still running, now cancelled: tools/call 'flood', tools/call 'flood'" in process.errors
    assert notes.all()[-1] == "lifespan left"


@pytest.mark.parametrize(("server", "options"), [("daphne", ()), ("uvicorn", ("--lifespan", "off"))])
def test_a_lifespan_that_fails_at_first_is_answered_with_503_until_it_succeeds(
    server: str, options: tuple[str, ...], notes: Notes
) -> None:
    env = {**notes.env, "TEST_LIFESPAN": "fails once"}
    with serving(server, "tests.project.asgi", *options, env=env) as (process, address):
        refused = post(address, "/mcp", STATE)
        refused.read()
        assert (refused.status, refused.header("retry-after")) == (503, "5")
        assert b"shared" in post(address, "/mcp", STATE).read()
        assert process.errors.count("RuntimeError: the first start fails") == 1
    assert notes.all()[:2] == ["lifespan failed", "lifespan entered"]


def test_a_lifespan_that_keeps_failing_is_logged_once() -> None:
    with serving("daphne", env={"TEST_LIFESPAN": "fails"}) as (process, address):
        for _ in range(3):
            refused = post(address, "/mcp", STATE)
            refused.read()
            assert refused.status == 503
        assert process.errors.count("requests get 503 until it can") == 1
        assert process.errors.count("RuntimeError: every start fails") == 1
        assert Request(address, "/quick/").read() == b"quick"


def test_runmcp_does_not_listen_when_the_lifespan_fails() -> None:
    env = {"TEST_LIFESPAN": "fails", "TEST_ENDPOINTS": tcp(0)}
    with runmcp("--transport", "http", env=env) as process:
        assert process.wait() == 1
        assert "every start fails" in process.errors
        assert " is at " not in process.errors


def test_uvicorn_does_not_start_when_the_lifespan_fails() -> None:
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "tests.project.asgi:application"]
    with running(command, env=environment(TEST_LIFESPAN="fails")) as process:
        assert process.wait() != 0
        assert process.errors.count("RuntimeError: every start fails") == 1


def test_a_handler_is_the_whole_application_of_an_asgi_server(notes: Notes) -> None:
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "tests.project.asgi:handler"]
    with running(command, env=environment(**notes.env)) as process:
        address = address_of(process, "uvicorn")

        async def talk() -> None:
            async with Client(f"{address}/anywhere") as client:
                result = await client.call_tool("state", {})
                assert result.content[0].text == "shared"  # type: ignore[union-attr]

        anyio.run(talk)
        process.signal(signal.SIGTERM)
        process.wait()
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_the_handlers_of_other_servers_are_closed_with_the_lifespan_too() -> None:
    with serving_http() as (process, address):
        session = open_session(address, "/other")
        post(address, "/other", call(1, "echo", text="leaves a worker thread behind"), session).read()
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


# manage.py runserver


@contextmanager
def runserver(project: Path, notes: Notes) -> Iterator[tuple[Process, str]]:
    """The development server of a copy of the test project, in a process group of its own: it has a child."""
    shutil.copytree(ROOT / "tests", project / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    env = environment(TEST_APPS='["daphne"]', PYTHONPATH=f"{project}{os.pathsep}{ROOT}", **notes.env)
    options: dict[str, Any] = {"env": env, "cwd": project, "start_new_session": True}
    with (
        reserved_port() as port,  # the same after the reload
        running([sys.executable, "-m", "django", "runserver", f"127.0.0.1:{port}"], **options) as process,
    ):
        try:
            process.wait_for("Listening on TCP")
            yield process, f"http://127.0.0.1:{port}"
        finally:
            if process.popen.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_runserver_serves_it_and_survives_its_autoreload(tmp_path: Path, notes: Notes) -> None:
    with runserver(tmp_path, notes) as (process, address):
        session = open_session(address, "/mcp")
        post(address, "/mcp", call(1, "echo", text="leaves a worker thread behind"), session).read()
        source = tmp_path / "tests" / "project" / "mcp.py"
        changed = source.read_text().replace('"shared"', '"reloaded"')
        # Again and again: what is written before the reloader has first looked is no change to it.
        wait_until(lambda: source.write_text(changed) and "mcp.py changed" in process.errors, "reloading")
        process.wait_for(r"(?s)Listening on TCP.*Listening on TCP", timeout=10)
        assert b"reloaded" in post(address, "/mcp", STATE).read()
        assert notes.all() == ["lifespan entered", "lifespan left", "lifespan entered"]
        os.killpg(process.pid, signal.SIGINT)
        process.wait(10)
        notes.wait_for("lifespan left", times=2)
        assert "Traceback" not in process.errors
