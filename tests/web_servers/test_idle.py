"""An idle server waits for events: it costs no more than the Daphne server in it, which polls once a second."""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.shutdown.test_shutdown_http import send_call
from tests.support.asgi_servers import address_of
from tests.support.harness import Process, environment, runmcp, running, serving_http
from tests.support.http_client import Clients

pytestmark = [pytest.mark.process, pytest.mark.serial]


def cpu_seconds(process: Process) -> float:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def test_an_idle_server_uses_no_cpu_of_ours() -> None:
    plain = [
        sys.executable,
        "-m",
        "daphne",
        "--bind",
        "127.0.0.1",
        "--port",
        "0",
        "tests.project.asgi:application",
    ]
    with (
        running(plain, env=environment()) as daphne,
        serving_http() as (http, address),
        runmcp() as stdio,
    ):

        async def call_once() -> None:
            async with Clients(address) as clients:
                assert (
                    await (await send_call(clients, "echo", generation="2026-07-28", text="x")).answer()
                ).status == 200

        asyncio.run(call_once())
        plain = address_of(daphne, "daphne")
        assert urllib.request.urlopen(f"{plain}/quick/").read() == b"quick"
        stdio.wait_for("is on standard input")
        processes = (daphne, http, stdio)
        time.sleep(1)  # what serving the first request has left to do
        before = [cpu_seconds(process) for process in processes]
        time.sleep(2)
        used_by_daphne, used_by_http, used_by_stdio = (
            cpu_seconds(process) - then for process, then in zip(processes, before, strict=True)
        )
        print(f"daphne {used_by_daphne:.4f} s, http {used_by_http:.4f} s, stdio {used_by_stdio:.4f} s")
        assert used_by_stdio == 0
        assert used_by_http <= 2 * used_by_daphne + 0.003
