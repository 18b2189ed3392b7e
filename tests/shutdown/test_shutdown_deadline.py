"""Past the deadline: what is left is cancelled and named, the cleanup has its second, and the process is gone."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

from tests.shutdown.test_shutdown_http import SOON, gone, send_call, told
from tests.support.harness import INITIALIZE, INITIALIZED, Notes, Process, call, runmcp, serving_http, text_of
from tests.support.http_client import Clients

pytestmark = pytest.mark.process

ONE = ("--shutdown-timeout", "1")
CLEANUP = 1.0
"""Seconds that the cleanup has when the deadline has passed."""


def the_error(process: Process) -> str:
    """The one line that says what was lost."""
    assert "Traceback" not in process.errors
    lines = [line for line in process.errors.splitlines() if "deadline passed" in line]
    assert len(lines) == 1, process.errors
    return lines[0]


MODES: dict[str, dict[str, Any]] = {
    "SSE": {},
    "JSON": {"json_response": True},
    "stateless, SSE": {"stateless_http": True},
    "stateless, JSON": {"stateless_http": True, "json_response": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_over_http_that_outlasts_the_deadline_is_cancelled_and_named(mode: str, notes: Notes) -> None:
    options = MODES[mode]
    old = "stateless" if "stateless_http" in options else "2025-11-25"

    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            calls = [
                await send_call(clients, "slow", generation=generation, seconds=60, name=generation)
                for generation in (old, "2026-07-28")
            ]
            for generation in (old, "2026-07-28"):
                await told(notes.wait_for, f"{generation} started")
            process.signal(signal.SIGTERM)
            began = time.monotonic()
            answers = await asyncio.gather(*(connection.answer() for connection in calls))
            for answer in answers:
                assert "shutting down" in answer.messages[-1]["error"]["message"]
            assert await gone(process, within=1 + CLEANUP + SOON - (time.monotonic() - began)) == 1

    with serving_http(*ONE, env={**notes.env, "TEST_HANDLER": json.dumps(options)}) as (process, address):
        asyncio.run(talk(process, address))
        assert the_error(process).count("tools/call 'slow'") == 2
    noted = notes.all()
    for generation in (old, "2026-07-28"):
        assert noted.index(f"{generation} cancelled") < noted.index(f"{generation} finally")
    assert noted[-1] == "lifespan left"


@pytest.mark.parametrize("generation", ["2025-11-25", "2026-07-28"])
def test_a_call_over_stdio_that_outlasts_the_deadline_is_cancelled_and_named(generation: str, notes: Notes) -> None:
    with runmcp(*ONE, env=notes.env) as process:
        modern = generation == "2026-07-28"
        process.send(*([] if modern else [INITIALIZE, INITIALIZED]), call(1, "slow", modern=modern, seconds=60))
        notes.wait_for("slow started")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=1 + CLEANUP + SOON)) == 1
        assert "tools/call 'slow'" in the_error(process)
        assert b"shutting down" in process.output().splitlines()[-1]
    assert notes.all() == ["lifespan entered", "slow started", "slow cancelled", "slow finally", "lifespan left"]


def test_a_view_that_outlasts_the_deadline_is_cancelled_and_named(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            view = await clients.connect()
            view.send("GET", "/slow-async/?seconds=60")
            await told(notes.wait_for, "async view started")
            process.signal(signal.SIGTERM)
            assert (await view.answer()).status == 503
            assert await gone(process) == 1

    with serving_http(*ONE, env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "GET '/slow-async/'" in the_error(process)
    assert notes.all() == ["lifespan entered", "async view started", "async view finally", "lifespan left"]


def test_threads_stuck_in_tools_and_views_do_not_keep_the_process_alive(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            assert (await (await clients.connect()).request("GET", "/quick/")).status == 200
            assert (await (await send_call(clients, "echo", generation="2026-07-28", text="x")).answer()).status == 200
            stuck = [
                await send_call(clients, "block", generation=generation, path=path, seconds=60)
                for generation, path in (("2025-11-25", "/mcp"), ("2026-07-28", "/mcp"), ("stateless", "/second/mcp"))
            ]
            for _ in range(2):
                stuck.append(await clients.connect())
                stuck[-1].send("GET", "/slow/?seconds=60")
            await told(notes.wait_for, "block started", 3)
            await told(notes.wait_for, "view started", 2)
            process.signal(signal.SIGTERM)
            answers = await asyncio.gather(*(connection.answer() for connection in stuck))
            assert [answer.status for answer in answers] == [200, 503, 503, 503, 503]
            assert answers[0].messages == [], "the event stream that had begun ends without a result"
            assert await gone(process, within=1 + CLEANUP + SOON) == 1

    env = {**notes.env, "TEST_LIFESPAN": "slow cleanup"}
    with serving_http(*ONE, env=env) as (process, address):
        asyncio.run(talk(process, address))
        error = the_error(process)
        assert error.count("tools/call 'block'") == 3
        assert error.count("GET '/slow/'") == 2
    assert notes.all()[-2:] == ["lifespan left", "slow cleanup done"]


def test_a_thread_stuck_in_a_tool_over_stdio_does_not_keep_the_process_alive(notes: Notes) -> None:
    with runmcp(*ONE, env={**notes.env, "TEST_LIFESPAN": "slow cleanup"}) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "block", seconds=60))
        notes.wait_for("block started")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=1 + CLEANUP + SOON)) == 1
        assert "tools/call 'block'" in the_error(process)
    assert notes.all() == ["lifespan entered", "block started", "lifespan left", "slow cleanup done"]


@pytest.mark.parametrize("generation", ["2025-11-25", "2026-07-28"])
def test_a_signal_during_the_shutdown_cancels_what_is_in_flight_at_once(generation: str, notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            in_flight = await send_call(clients, "slow", generation=generation, seconds=60)
            await told(notes.wait_for, "slow started")
            process.signal(signal.SIGTERM)
            await told(process.wait_for, "Shutting down: received SIGTERM")
            process.signal(signal.SIGINT)
            assert "shutting down" in (await in_flight.answer()).messages[-1]["error"]["message"]
            assert await gone(process) == 1

    with serving_http("--shutdown-timeout", "30", env={**notes.env, "TEST_LIFESPAN": "slow cleanup"}) as (
        process,
        address,
    ):
        asyncio.run(talk(process, address))
        assert "tools/call 'slow'" in the_error(process)
    assert notes.all()[-2:] == ["lifespan left", "slow cleanup done"]


def test_a_host_that_closes_stdin_and_then_signals_gets_the_cleanup_before_it_kills(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "30", env={**notes.env, "TEST_LIFESPAN": "slow cleanup"}) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=20))
        notes.wait_for("slow started")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        process.wait_for("Shutting down: standard input was closed")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=2.0)) == 1
        assert "tools/call 'slow'" in the_error(process)
    assert notes.all()[-4:] == ["slow cancelled", "slow finally", "lifespan left", "slow cleanup done"]


def test_calls_that_finish_while_the_process_is_stopped_beyond_the_deadline_are_answered(notes: Notes) -> None:
    generations = ("2025-11-25", "2026-07-28")

    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            calls = [
                await send_call(clients, "slow", generation=generation, seconds=3, name=generation)
                for generation in generations
            ]
            for generation in generations:
                await told(notes.wait_for, f"{generation} started")
            process.signal(signal.SIGTERM)
            await told(process.wait_for, "Shutting down")
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(5)  # the deadline passes, and the calls finish, while nothing can run
            process.signal(signal.SIGCONT)
            for generation, connection in zip(generations, calls, strict=True):
                assert text_of((await connection.answer()).messages[-1]) == f"{generation} finished"
            assert await gone(process, within=SOON + 10) == 0

    with serving_http("--shutdown-timeout", "4", env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "deadline passed" not in process.errors
