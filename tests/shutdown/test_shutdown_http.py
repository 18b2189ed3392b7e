"""The graceful shutdown over HTTP: no call is lost, streams end cleanly, nothing keeps the process alive."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import ConnectionClosed

from tests.support.harness import Notes, Process, call, serving_http, text_of
from tests.support.http_client import Clients, Connection, listen
from tests.support.raw_http import routing

pytestmark = pytest.mark.process

SOON = 5.0
"""Seconds that a machine shared with other work may take for what is over in half a second."""


async def told(wait: Callable[..., Any], *arguments: Any) -> None:
    """Wait for something outside this event loop."""
    await asyncio.to_thread(wait, *arguments)


async def gone(process: Process, within: float = SOON) -> int:
    """Its exit status; fails if it does not end within that many seconds from now."""
    since = time.monotonic()
    status = await asyncio.to_thread(process.wait)
    took = time.monotonic() - since
    print(f"gone after {took:.2f} s")
    assert took < within, f"it took {took:.2f} s; standard error:\n{process.errors}"
    return status


async def send_call(
    clients: Clients, tool: str, *, generation: str, path: str = "/mcp", **arguments: Any
) -> Connection:
    """A call on a connection of its own, whose answer has not been read."""
    message = call(1, tool, modern=generation == "2026-07-28", **arguments)
    if generation == "2026-07-28":
        connection = await clients.modern()
        connection.send("POST", path, message, **routing(message))
    else:
        connection = await (clients.session(path) if generation == "2025-11-25" else clients.connect())
        connection.send("POST", path, message)
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_200_calls_in_flight_are_answered_before_the_process_exits(number: signal.Signals, notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            idle = await clients.modern()
            assert (await idle.request("GET", "/quick/")).status == 200
            generations = ["2025-11-25", "2026-07-28"] * 100
            calls = [await send_call(clients, "slow", generation=g, seconds=1, name="call") for g in generations]
            await told(notes.wait_for, "call started", 200)
            process.signal(number)
            await told(process.wait_for, "Shutting down: received")
            refused = await idle.request("GET", "/quick/")
            assert (refused.status, refused.headers["connection"]) == (503, "close")
            assert int(refused.headers["retry-after"]) > 0
            with pytest.raises(ConnectionRefusedError):
                await clients.connect()
            answers = await asyncio.gather(*(connection.answer() for connection in calls))
            assert [text_of(answer.messages[-1]) for answer in answers] == ["call finished"] * 200
            assert await gone(process) == 0

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors
    assert notes.all()[-1] == "lifespan left"


def test_async_and_sync_views_in_flight_are_answered_before_the_process_exits(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            views = [await clients.connect() for _ in range(100)]
            for index, view in enumerate(views):
                view.send("GET", f"/{'slow' if index % 5 == 0 else 'slow-async'}/?seconds=1")
            await told(notes.wait_for, "async view started", 80)
            await told(notes.wait_for, "view started", 20)
            process.signal(signal.SIGTERM)
            answers = await asyncio.gather(*(view.answer() for view in views))
            assert [answer.status for answer in answers] == [200] * 100
            assert await gone(process) == 0

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


def test_the_end_of_standard_input_lets_the_http_calls_in_flight_finish(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            in_flight = await send_call(clients, "slow", generation="2025-11-25", seconds=1)
            await told(notes.wait_for, "slow started")
            assert process.popen.stdin is not None
            process.popen.stdin.close()
            assert text_of((await in_flight.answer()).messages[-1]) == "slow finished"
            assert await gone(process) == 0

    with serving_http(transport="both", env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Shutting down: standard input was closed" in process.errors


def test_standing_streams_end_cleanly_once_the_calls_in_flight_are_answered(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            call_in_flight = await send_call(clients, "slow", generation="2025-11-25", seconds=1)
            gets = []
            listens = []
            for index in range(50):
                get = await clients.session()
                get.send("GET", "/mcp")
                gets.append((get, await get.head()))
                listening = await clients.modern()
                message = listen(index)
                listening.send("POST", "/mcp", message, **routing(message))
                listens.append((listening, await listening.head()))
            chunks = [listening.chunks(head) for listening, head in listens]
            for index in range(50):
                assert b"notifications/subscriptions/acknowledged" in await first_event(chunks[index])
            await told(notes.wait_for, "slow started")
            process.signal(signal.SIGTERM)
            answer = await call_in_flight.answer()
            assert text_of(answer.messages[-1]) == "slow finished"
            for get, head in gets:
                assert [chunk async for chunk in get.chunks(head)] == [], "a GET stream ends without an event"
            for index in range(50):
                events_left = b"".join([chunk async for chunk in chunks[index]])
                assert b'"result"' in events_left
                assert f'"id":{index}'.encode() in events_left
            assert await gone(process) == 0

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


async def first_event(chunks: AsyncIterator[bytes]) -> bytes:
    async for chunk in chunks:
        if chunk:
            return chunk
    raise AssertionError("the stream ended before its first event")


def test_the_sdks_client_answers_a_question_while_draining() -> None:
    async def talk(process: Process, address: str) -> None:
        async def answer(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"word": "yes"})

        async def stop(progress: float, total: float | None, message: str | None) -> None:
            if message == "before":
                process.signal(signal.SIGTERM)

        async with Client(f"{address}/mcp", mode="legacy", elicitation_callback=answer) as client:
            await client.list_tools()  # else it asks for the schema of the result, which is a new call
            result = await client.call_tool("ask_slowly", {}, progress_callback=stop)
            assert result.content[0].text == "yes"  # type: ignore[union-attr]
        assert await gone(process) == 0

    with serving_http() as (process, address):
        asyncio.run(talk(process, address))


def test_a_process_with_nothing_but_streams_is_gone_at_once() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            stream = await clients.session()
            stream.send("GET", "/mcp")
            head = await stream.head()
            process.signal(signal.SIGTERM)
            assert [chunk async for chunk in stream.chunks(head)] == []
            assert await gone(process, within=1.0) == 0

    with serving_http() as (process, address):
        asyncio.run(talk(process, address))


def test_progress_and_questions_of_a_call_in_flight_get_through_while_draining() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            asking = await clients.session(elicitation=True)
            kept_alive = await clients.another(asking)
            assert (await kept_alive.request("GET", "/quick/")).status == 200
            params = {"_meta": {"progressToken": "steps"}, "name": "ask_slowly", "arguments": {}}
            asking.send("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            sse = asking.events(await asking.head())
            assert (await anext(sse))["params"]["message"] == "before"
            process.signal(signal.SIGTERM)
            await told(process.wait_for, "Shutting down: received")
            for connection in (kept_alive, await clients.another(asking)):
                refused = await connection.request("POST", "/mcp", call(2, "echo", text="new"))
                assert (refused.status, refused.headers["connection"]) == (503, "close")
            question = await anext(sse)
            assert question["method"] == "elicitation/create"
            answering = await clients.another(asking)
            answer = {
                "jsonrpc": "2.0",
                "id": question["id"],
                "result": {"action": "accept", "content": {"word": "yes"}},
            }
            assert (await answering.request("POST", "/mcp", answer)).status == 202
            assert (await anext(sse))["params"]["message"] == "after"
            assert text_of(await anext(sse)) == "yes"
            assert await gone(process) == 0

    with serving_http() as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


def test_a_websocket_consumer_gets_its_disconnect_and_the_time_to_clean_up(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients, websocket(address.replace("http", "ws") + "/chat/") as chat:
            call_in_flight = await send_call(clients, "slow", generation="2026-07-28", seconds=1)
            await told(notes.wait_for, "slow started")
            process.signal(signal.SIGTERM)
            assert text_of((await call_in_flight.answer()).messages[-1]) == "slow finished"
            with pytest.raises(ConnectionClosed):
                await chat.recv()
            assert chat.close_code == 1001
            assert await gone(process) == 0

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors
    noted = notes.all()
    assert "websocket disconnected with 1001" in noted
    assert noted.index("slow finished") < noted.index("websocket cleaned up") < noted.index("lifespan left")


HALF_REQUESTS = {
    "no request at all": b"",
    "headers without their end": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n",
    "a body that was only announced": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
    "half a body": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    "a second request behind an answered one": b"GET /quick/ HTTP/1.1\r\nHost: localhost\r\n\r\nGET /qui",
}


def test_half_received_requests_neither_delay_the_exit_nor_print_a_traceback() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            for half in HALF_REQUESTS.values():
                connection = await clients.connect()
                connection.writer.write(half)
                await connection.writer.drain()
            assert (await (await clients.connect()).request("GET", "/quick/")).status == 200
            process.signal(signal.SIGTERM)
            assert await gone(process, within=1.0) == 0

    with serving_http(env={"TEST_DAPHNE": '{"verbosity": 2}'}) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors
        assert "Error" not in process.errors


def test_a_client_that_reads_slowly_gets_its_whole_answer() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            reading = await send_call(clients, "big", generation="2026-07-28", length=20_000_000)
            head = await reading.head()
            process.signal(signal.SIGTERM)
            await told(process.wait_for, "Shutting down: received")
            body = b""
            async for part in reading.parts(head):
                body += part
                await asyncio.sleep(0.01)
            assert body.count(b"x") >= 20_000_000
            assert await gone(process) == 0

    with serving_http() as (process, address):
        asyncio.run(talk(process, address))


def test_a_client_that_has_stopped_reading_does_not_delay_the_exit_but_is_reported() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            stalled = await send_call(clients, "big", generation="2026-07-28", length=20_000_000)
            await stalled.head()
            process.signal(signal.SIGTERM)
            assert await gone(process, within=2.0 + SOON) == 1
            assert "1 client reading an answer" in process.errors
            assert "Traceback" not in process.errors

    with serving_http("--shutdown-timeout", "30") as (process, address):
        asyncio.run(talk(process, address))


@pytest.mark.parametrize("generation", ["2025-11-25", "2026-07-28"])
def test_a_call_whose_client_has_left_is_not_waited_for(generation: str, notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            call_in_flight = await send_call(clients, "slow", generation=generation, seconds=60)
            view = await clients.connect()
            view.send("GET", "/slow-async/?seconds=60")
            for note in ("slow started", "async view started"):
                await told(notes.wait_for, note)
            call_in_flight.reset()
            view.reset()
            process.signal(signal.SIGTERM)
            assert await gone(process) == 0

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors
    assert {"slow finally", "async view finally"} <= set(notes.all())
    assert notes.all()[-1] == "lifespan left"


def test_a_view_that_streams_events_is_a_standing_stream(notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            stream = await clients.connect()
            stream.send("GET", "/events/")
            await stream.head()
            await told(notes.wait_for, "events view started")
            process.signal(signal.SIGTERM)
            assert await gone(process) == 0

    with serving_http("--shutdown-timeout", "60", env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
    assert notes.all()[-2:] == ["events view finally", "lifespan left"]
