"""A tool that raises what is no ``Exception``, or cancels what it should not, ends its own call and nothing else."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError

from tests.support.harness import (
    DEADLINE,
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    Notes,
    call,
    environment,
    runmcp,
    serving_http,
    text_of,
    wait_until,
)

pytestmark = pytest.mark.process

HOSTILE = {
    "TEST_MCP_SERVING": json.dumps(
        {"SERVER": "tests.project.hostile.server", "HTTP_SERVER": "tests.project.hostile_serving.build_daphne"}
    )
}
TOOLS = ["cancelled_task", "cancels_itself", "panics", "exits", "generator_exit"]


def test_over_stdio_each_costs_its_own_call_and_no_other(notes: Notes) -> None:
    with runmcp(env={**HOSTILE, **notes.env}) as process:
        process.send(INITIALIZE, INITIALIZED, call("slow", "slow", seconds=1))
        process.receive()
        for tool in TOOLS:
            process.send(call(tool, tool))
        answers: dict[Any, Any] = {}
        while len(answers) < len(TOOLS):
            answer = process.receive()
            answers[answer["id"]] = answer
        for tool in TOOLS:
            assert "error" in answers[tool] or answers[tool]["result"]["isError"], answers[tool]
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert text_of(process.receive()) == "slow finished"
        assert process.wait() == 0
    assert notes.all().count("lifespan left") == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_http_each_costs_its_own_call_and_no_other(mode: str, notes: Notes) -> None:
    async def talk(address: str) -> None:
        async with (
            Client(f"{address}/mcp", mode=mode) as client,
            Client(f"{address}/mcp", mode=mode) as other,
            asyncio.TaskGroup() as group,
        ):
            slow = group.create_task(other.call_tool("slow", {"seconds": 2}))
            for tool in TOOLS:
                with anyio.fail_after(5):
                    with suppress(MCPError):
                        assert (await client.call_tool(tool, {})).is_error
            assert not (await client.call_tool("echo", {"text": "still there"})).is_error
            assert not (await slow).is_error

    with serving_http(env={**HOSTILE, **notes.env}) as (process, address):
        asyncio.run(talk(address))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert notes.all().count("lifespan left") == 1


def test_an_application_that_exits_is_answered_and_the_server_goes_on(notes: Notes) -> None:
    with serving_http(env={**HOSTILE, **notes.env}) as (process, address):
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                urllib.request.urlopen(f"{address}/exits/", timeout=DEADLINE)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert notes.all() == ["lifespan entered", "lifespan left"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_lifespan_that_ends_by_itself_ends_the_server_which_says_why(transport: str, notes: Notes) -> None:
    env = {**HOSTILE, **notes.env, "TEST_HOSTILE": "dying lifespan", "TEST_ENDPOINTS": '["tcp:0:interface=127.0.0.1"]'}
    with runmcp("--transport", transport, env=env) as process:
        assert process.wait() == 1
        assert "Shutting down: the lifespan of the MCP server has ended by itself." in process.errors
        assert "a task of the lifespan failed" in process.errors
    assert notes.all() == ["lifespan entered", "lifespan left"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_forked_child_is_ended_by_its_own_signal_and_the_server_is_not(transport: str, notes: Notes) -> None:
    env = {**HOSTILE, **notes.env}
    if transport == "stdio":
        with runmcp(env=env) as process:
            process.send(INITIALIZE, INITIALIZED, call(1, "forks"))
            process.receive()
            assert text_of(process.receive()) == "-15"
            process.send(call(2, "echo", text="still there"))
            assert text_of(process.receive()) == "still there"
        return

    async def fork(address: str) -> None:
        async with Client(f"{address}/mcp") as client:
            assert (await client.call_tool("forks", {})).structured_content == {"result": "-15"}
            assert not (await client.call_tool("echo", {"text": "still there"})).is_error

    with serving_http(env=env) as (process, address):
        asyncio.run(fork(address))


def test_a_host_that_does_not_read_standard_error_still_gets_its_cleanup(notes: Notes) -> None:
    command = [*MANAGE, "runmcp", "--server", "tests.project.noisy.server"]
    process = subprocess.Popen(
        command,
        env=environment(**notes.env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    killer = threading.Timer(DEADLINE, process.kill)
    killer.start()
    try:
        assert process.stdin is not None
        for message in (INITIALIZE, INITIALIZED, call(1, "fill_standard_error")):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        notes.wait_for("standard error is full")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, "the process is gone")
    finally:
        killer.cancel()
        process.kill()
        process.communicate()
    assert notes.all()[-1] == "lifespan left"
