"""``Server`` in a process of the caller's own: run() and stop() from wherever Python lets them be called."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import Any

import pytest
from mcp import Client

from tests.shutdown.test_shutdown_http import gone, send_call
from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    Notes,
    Process,
    call,
    environment,
    running,
    tcp,
    text_of,
)
from tests.support.http_client import Clients

pytestmark = pytest.mark.process

PYTHON_ENDS = 15.0
"""Seconds that Python may take to exit on a busy machine; six were measured. ``runmcp`` skips this part of the exit."""

PREAMBLE = """
import os, pathlib, signal, sys, threading
import django
django.setup()
from mcp_serving import Server
from tests.project.mcp import server as mcp
from tests.support.harness import Notes
from tests.project.notes import note

notes = pathlib.Path(os.environ["TEST_NOTES"])

def say(line):
    print(line, file=sys.stderr, flush=True)

def build():
    from tests.project.serving import build_daphne
    return build_daphne()
"""


@contextmanager
def script(text: str, notes: Notes, **env: str) -> Iterator[Process]:
    command = [sys.executable, "-c", PREAMBLE + dedent(text)]
    with running(command, env=environment(**notes.env, TEST_ENDPOINTS=tcp(0), **env)) as process:
        yield process


@pytest.mark.parametrize("transport", ["stdio", "http", "both"])
def test_stop_from_another_thread_lets_the_calls_finish_and_run_return(transport: str, notes: Notes) -> None:
    text = f"""
        server = Server(mcp, transport={transport!r}, http_server=build)

        def stop_once_a_call_is_in_flight():
            Notes(notes).wait_for("slow started")
            server.stop()
            server.stop()

        threading.Thread(target=stop_once_a_call_is_in_flight).start()
        server.run(announce=say)
        say("returned")
        server.stop()
    """
    with script(text, notes) as process:
        if transport == "http":
            address = process.wait_for(r"is at (http://[\d.:]+)")[1]

            async def talk() -> None:
                async with Clients(address) as clients:
                    sync_tool = await send_call(clients, "echo", generation="2025-11-25", text="leaves an idle thread")
                    assert (await sync_tool.answer()).status == 200
                    assert (await (await clients.connect()).request("GET", "/quick/")).status == 200
                    in_flight = await send_call(clients, "slow", generation="2026-07-28", seconds=0.5)
                    assert text_of((await in_flight.answer()).messages[-1]) == "slow finished"

            asyncio.run(talk())
        else:
            process.send(INITIALIZE, INITIALIZED, call(1, "echo", text="leaves an idle thread"))
            assert [process.receive()["id"], process.receive()["id"]] == ["initialize", 1]
            process.send(call(2, "slow", seconds=0.5))
            assert text_of(process.receive()) == "slow finished"
        process.wait_for("returned")
        assert asyncio.run(gone(process, within=PYTHON_ENDS)) == 0, "the interpreter ends by itself, without runmcp"
        assert "Shutting down: stop() was called" in process.errors
    assert notes.all()[-1] == "lifespan left"


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_it_runs_in_another_thread_where_signals_stay_with_the_main_thread(transport: str, notes: Notes) -> None:
    text = f"""
        server = Server(mcp, transport={transport!r}, http_server=build)
        signal.signal(signal.SIGTERM, lambda *_: (note("the caller's handler"), server.stop()))
        thread = threading.Thread(target=server.run, kwargs={{"announce": say}})
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
    """
    with script(text, notes) as process:
        process.wait_for("Stop it")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=PYTHON_ENDS)) == 0
        assert "Traceback" not in process.errors
    assert notes.all() == ["lifespan entered", "the caller's handler", "lifespan left"]


def test_stop_from_a_signal_handler_of_the_caller(notes: Notes) -> None:
    text = """
        server = Server(mcp)
        signal.signal(signal.SIGUSR1, lambda *_: server.stop())
        server.run(announce=say)
    """
    with script(text, notes) as process:
        process.wait_for("is on standard input")
        process.signal(signal.SIGUSR1)
        assert asyncio.run(gone(process, within=PYTHON_ENDS)) == 0
    assert notes.all() == ["lifespan entered", "lifespan left"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_stop_before_run_makes_it_return_without_having_started(transport: str, notes: Notes) -> None:
    text = f"""
        server = Server(mcp, transport={transport!r}, http_server=build)
        server.stop()
        server.run(announce=say)
        say("returned")
    """
    with script(text, notes) as process:
        assert process.wait() == 0
        assert process.errors.strip().endswith("returned")
    assert notes.all() == []


def test_it_runs_once_gives_back_standard_output_and_the_signals(notes: Notes) -> None:
    text = """
        before = signal.getsignal(signal.SIGINT)
        server = Server(mcp)
        server.run(announce=say)
        assert signal.getsignal(signal.SIGINT) is before
        print("printed after", sys.stdin.read(), flush=True)
        try:
            server.run()
        except RuntimeError as error:
            print(error, flush=True)  # what is not flushed when the next one begins is not for the wire
        Server(mcp).run()
        print("and after another one")
    """
    with script(text, notes) as process:
        process.send(INITIALIZE)
        process.receive()
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0, process.errors
        assert process.output().decode().splitlines() == [
            "printed after ",
            "This Server has been run already: build a new one.",
            "and after another one",
        ]
    assert notes.all() == ["lifespan entered", "lifespan left"] * 2


def test_a_second_server_over_http_is_told_that_the_reactor_runs_once(notes: Notes) -> None:
    text = """
        for _ in range(2):
            server = Server(mcp, transport="http", http_server=build)
            try:
                server.run(announce=lambda line: server.stop())
            except RuntimeError as error:
                print(error)
    """
    with script(text, notes) as process:
        assert process.wait() == 0, process.errors
        assert process.output().decode().startswith("Twisted's reactor runs once in a process")
    assert notes.all() == ["lifespan entered", "lifespan left"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_task_that_nobody_awaits_cleans_up_before_run_returns(transport: str, notes: Notes) -> None:
    text = f"""
        import asyncio

        async def stray():
            try:
                await asyncio.Event().wait()
            finally:
                note("stray task cleaned up")

        tasks = []

        @mcp.tool()
        async def leave_a_task():
            tasks.append(asyncio.create_task(stray()))

        server = Server(mcp, transport={transport!r}, http_server=build)
        server.run(announce=say)
        note("returned")
    """
    with script(text, notes) as process:
        if transport == "stdio":
            process.send(INITIALIZE, INITIALIZED, call(1, "leave_a_task"))
            process.receive()
            process.receive()
        else:
            address = process.wait_for(r"is at (\S+?)/mcp,")[1]

            async def leave() -> None:
                async with Client(f"{address}/mcp") as client:
                    await client.call_tool("leave_a_task", {})

            asyncio.run(leave())
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "was destroyed" not in process.errors
    assert notes.all() == ["lifespan entered", "lifespan left", "stray task cleaned up", "returned"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_deadline_raises_shutdown_timeout_for_the_caller_to_catch(transport: str, notes: Notes) -> None:
    text = f"""
        from mcp_serving.errors import ShutdownTimeout
        server = Server(mcp, transport={transport!r}, http_server=build, shutdown_timeout=0)
        try:
            server.run(announce=say)
        except ShutdownTimeout as error:
            say(f"caught: {{error}}")
    """
    with script(text, notes) as process:
        if transport == "http":
            address = process.wait_for(r"is at (http://[\d.:]+)")[1]

            async def talk() -> Any:
                async with Clients(address) as clients:
                    in_flight = await send_call(clients, "slow", generation="2026-07-28", seconds=60)
                    await asyncio.to_thread(notes.wait_for, "slow started")
                    process.signal(signal.SIGTERM)
                    return (await in_flight.answer()).messages[-1]["error"]

            asyncio.run(talk())
        else:
            process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=60))
            notes.wait_for("slow started")
            process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=PYTHON_ENDS)) == 0
        assert "caught: The shutdown's deadline passed with 1 still running" in process.errors
        assert "tools/call 'slow'" in process.errors
    assert notes.all()[-1] == "lifespan left"
