"""The server's lifespan is left exactly once, in the task that entered it, however serving ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.mcpserver import Context, MCPServer

from mcp_serving import StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.lifespan import LifespanTask
from mcp_serving.shutdown.deadline import Deadline
from tests.shutdown.test_shutdown_http import SOON, gone, send_call
from tests.support.asgi_servers import serving
from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    Notes,
    Process,
    call,
    runmcp,
    serving_http,
    tcp,
    text_of,
)
from tests.support.http_client import Clients
from tests.support.raw_http import headers_of

ONCE = ["lifespan entered", "lifespan left"]


def close_stdin(process: Process) -> None:
    assert process.popen.stdin is not None
    process.popen.stdin.close()


def terminate(process: Process) -> None:
    process.signal(signal.SIGTERM)


async def state_over_http(address: str) -> str:
    async with Clients(address) as clients:
        answer = await (await send_call(clients, "state", generation="2026-07-28")).answer()
        return text_of(answer.messages[-1])


@pytest.mark.process
@pytest.mark.parametrize("end", [close_stdin, terminate])
def test_both_transports_share_one_lifespan(end: Callable[[Process], None], notes: Notes) -> None:
    with serving_http(transport="both", env=notes.env) as (process, address):
        process.send(INITIALIZE, INITIALIZED, call(1, "state"))
        assert [process.receive()["id"], text_of(process.receive())] == ["initialize", "shared"]
        assert asyncio.run(state_over_http(address)) == "shared"
        end(process)
        assert asyncio.run(gone(process)) == 0
    assert notes.all() == ONCE


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "both"])
def test_a_listen_failure_leaves_the_lifespan(transport: str, notes: Notes) -> None:
    with serving_http() as (_, address):
        taken = {"TEST_ENDPOINTS": tcp(int(address.rpartition(":")[2]))}
        with runmcp("--transport", transport, env={**notes.env, **taken}) as process:
            assert process.wait() == 1
            assert "address already in use" in process.errors.lower()
            assert "Traceback" not in process.errors
    assert notes.all() == ONCE


@pytest.mark.process
@pytest.mark.parametrize("transport", ["stdio", "http", "both"])
def test_a_signal_before_the_lifespan_is_entered_is_a_clean_end(transport: str, notes: Notes) -> None:
    slow = {**notes.env, "TEST_LIFESPAN": "slow start", "TEST_ENDPOINTS": tcp(0)}
    with runmcp("--transport", transport, env=slow) as process:
        notes.wait_for("lifespan starting")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process)) == 0
        assert "Traceback" not in process.errors
    assert notes.all() == ["lifespan starting"]


@pytest.mark.process
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_cleanup_that_raises_is_reported(transport: str, notes: Notes) -> None:
    failing = {**notes.env, "TEST_LIFESPAN": "cleanup raises", "TEST_ENDPOINTS": tcp(0)}
    with runmcp("--transport", transport, env=failing) as process:
        process.wait_for(" is (at|on) ")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process)) == 1
        assert process.errors.count("RuntimeError: the cleanup fails") == 1
    assert notes.all() == ONCE


@pytest.mark.process
def test_a_cleanup_that_raises_keeps_nothing_else_from_being_left(notes: Notes) -> None:
    failing = {**notes.env, "TEST_LIFESPAN": "cleanup raises"}
    with serving_http("--shutdown-timeout", "1", env=failing) as (process, address):

        async def talk() -> None:
            async with Clients(address) as clients:
                other = await send_call(clients, "echo", generation="2026-07-28", path="/other", text="x")
                assert text_of((await other.answer()).messages[-1]) == "x"
                await send_call(clients, "slow", generation="2026-07-28", seconds=60)
                await asyncio.to_thread(notes.wait_for, "slow started")
                process.signal(signal.SIGTERM)
                assert await gone(process, within=1 + SOON) == 1

        asyncio.run(talk())
        assert process.errors.count("RuntimeError: the cleanup fails") == 1
        assert "tools/call 'slow'" in process.errors
    assert notes.all().count("lifespan left") == 1
    assert notes.all()[-1] == "other lifespan left"


@pytest.mark.process
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_cleanup_that_hangs_is_cut_at_the_deadline(transport: str, notes: Notes) -> None:
    hanging = {**notes.env, "TEST_LIFESPAN": "cleanup hangs", "TEST_ENDPOINTS": tcp(0)}
    with runmcp("--transport", transport, "--shutdown-timeout", "1", env=hanging) as process:
        process.wait_for(" is (at|on) ")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=1 + SOON)) == 1
        assert "the cleanup of the lifespan of 'test-server'" in process.errors
        assert "Traceback" not in process.errors
    assert notes.all() == [*ONCE, "cleanup cut"]


@pytest.mark.process
def test_a_signal_cuts_a_cleanup_that_hangs(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "30", env={**notes.env, "TEST_LIFESPAN": "cleanup hangs"}) as process:
        process.wait_for("is on standard input")
        process.signal(signal.SIGTERM)
        notes.wait_for("lifespan left")
        process.signal(signal.SIGTERM)
        assert asyncio.run(gone(process, within=1 + SOON)) == 1
    assert notes.all() == [*ONCE, "cleanup cut"]


@pytest.mark.process
@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_another_asgi_server_leaves_the_lifespan_when_it_is_stopped(server: str, notes: Notes) -> None:
    with serving(server, env=notes.env) as (process, address):
        assert asyncio.run(state_over_http(address)) == "shared"

        async def echo() -> None:
            async with Clients(address) as clients:
                assert (
                    await (await send_call(clients, "echo", generation="2025-11-25", text="x")).answer()
                ).status == 200

        asyncio.run(echo())  # leaves an idle worker thread behind
        process.signal(signal.SIGTERM)
        process.wait()
        assert "Traceback" not in process.errors
    assert notes.all() == ONCE


@pytest.mark.process
@pytest.mark.parametrize("server", ["runmcp", "daphne"])
def test_a_request_while_the_lifespan_is_left_does_not_enter_it_again(server: str, notes: Notes) -> None:
    with serving(server, env={**notes.env, "TEST_LIFESPAN": "slow cleanup"}) as (process, address):

        async def talk() -> int:
            async with Clients(address) as clients:
                session = await clients.session()
                process.signal(signal.SIGTERM)
                await asyncio.to_thread(notes.wait_for, "lifespan left")
                changed = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
                return (await session.request("POST", "/mcp", changed)).status

        assert asyncio.run(talk()) == 503
        process.wait()
    assert notes.all() == [*ONCE, "slow cleanup done"]


def test_what_is_opened_while_it_is_closed_is_entered_once_it_is_left() -> None:
    noted = []

    @asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        noted.append("entered")
        yield
        await asyncio.sleep(0.05)
        noted.append("left")

    async def use() -> None:
        held = LifespanTask("manager", manager)
        await held.open()
        closing = asyncio.create_task(held.close(Deadline(5)))
        await asyncio.sleep(0)
        await held.open()
        assert await closing
        assert await held.close(Deadline(5))

    asyncio.run(use())
    assert noted == ["entered", "left"] * 2


def test_a_loop_that_ends_without_a_word_leaves_the_lifespan_and_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in a test of a project that calls its ASGI application: nobody sends the messages of the ASGI lifespan."""
    noted = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        noted.append("entered")
        try:
            yield
        finally:
            noted.append("left")

    handler = StreamableHTTPHandler(MCPServer("x", lifespan=lifespan), public=True)
    asyncio.run(handler.start())  # type: ignore[arg-type]
    assert noted == ["entered", "left"]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_where_no_server_ends_the_process_a_lifespan_that_ended_by_itself_is_entered_again() -> None:
    entered: list[dict[str, bool]] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, bool]]:
        entered.append({"open": True})
        fail = asyncio.Event()
        async with anyio.create_task_group() as group:
            if len(entered) == 1:

                async def break_off() -> None:
                    await fail.wait()
                    raise RuntimeError("the connection of the lifespan broke")

                group.start_soon(break_off)
                fails.append(fail)
            try:
                yield entered[-1]
            finally:
                entered[-1]["open"] = False
                group.cancel_scope.cancel()

    fails: list[asyncio.Event] = []
    server = MCPServer("x", lifespan=lifespan)

    @server.tool()
    async def look(ctx: Context) -> bool:
        state: Any = ctx.request_context.lifespan_context
        return bool(state["open"])

    handler = StreamableHTTPHandler(server, public=True, json_response=True)

    async def talk() -> None:
        message = call(1, "look", modern=True)
        transport = httpx2.ASGITransport(app=handler)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(3):
                answer = await client.post("/mcp", json=message, headers=headers_of(message))
                assert answer.json()["result"]["structuredContent"] == {"result": True}
                fails[0].set()
                await asyncio.sleep(0.05)
        await lifecycle.close()

    asyncio.run(talk())
    assert entered == [{"open": False}] * 2
