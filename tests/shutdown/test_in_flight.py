"""The requests in flight, without a process: what a shutdown waits for, and what it costs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anyio
import pytest

from mcp_serving import StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.drain import drain, drain_after_delay
from mcp_serving.shutdown.in_flight import InFlightRequest, InFlightRequests
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware
from tests.asgi.test_mount import call_in_process, echo_server, in_process
from tests.support.harness import call
from tests.support.raw_http import headers_of


def nothing() -> None: ...


def seconds_to_close(number: int) -> float:
    """Seconds of CPU in which so many calls are closed one after the other, while a shutdown waits for them."""

    async def close_all() -> float:
        in_flight = InFlightRequests()
        requests = [in_flight.open(f"call {index}") for index in range(number)]
        draining = asyncio.create_task(drain(in_flight, end_subscriptions=nothing))
        began = time.process_time()
        for request in requests:
            await asyncio.sleep(0)
            request.close()
        await draining
        return time.process_time() - began

    return asyncio.run(close_all())


def test_the_cost_of_closing_a_call_does_not_grow_with_their_number() -> None:
    few = min(seconds_to_close(1_000) for _ in range(3))
    many = min(seconds_to_close(8_000) for _ in range(3))
    assert many < 3 * 8 * few
    assert many < 1


def test_a_call_that_has_finished_while_the_event_loop_was_held_up_is_not_cancelled() -> None:
    async def shut_down() -> list[str]:
        in_flight = InFlightRequests()
        finished, unfinished = in_flight.open("finished"), in_flight.open("unfinished")

        async def answer(request: InFlightRequest) -> None:
            for _ in range(20):  # turns of the event loop that an answer takes
                await asyncio.sleep(0)
            request.close()

        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        loop.call_later(0.1, lambda: tasks.append(loop.create_task(answer(finished))))
        loop.call_soon(time.sleep, 0.5)
        deadline = Deadline(0.2)
        with deadline.scope():
            await drain(in_flight, end_subscriptions=nothing)
        await drain_after_delay(deadline, in_flight, end_subscriptions=nothing)
        assert unfinished.name in in_flight.names
        return in_flight.names

    assert asyncio.run(shut_down()) == ["unfinished"]


def test_without_a_delay_the_deadline_is_kept() -> None:
    async def shut_down() -> float:
        in_flight = InFlightRequests()
        in_flight.open("unfinished")
        deadline = Deadline(0.05)
        with deadline.scope():
            await drain(in_flight, end_subscriptions=nothing)
        before = anyio.current_time()
        lateness = deadline.lateness
        await drain_after_delay(deadline, in_flight, end_subscriptions=nothing)
        return anyio.current_time() - before - lateness

    assert asyncio.run(shut_down()) < 0.2


def test_an_application_that_only_sends_events_is_ended_with_its_stream() -> None:
    sent: list[Any] = []

    async def events(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await asyncio.Event().wait()

    async def talk() -> None:
        in_flight = InFlightRequests()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/events/", "headers": []}
        app = RequestTrackingMiddleware(events, in_flight)
        serving = asyncio.create_task(app(scope, asyncio.Event().wait, send))  # type: ignore[arg-type]
        while not in_flight.streams:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with anyio.fail_after(10):
            await drain(in_flight, end_subscriptions=nothing)
            await serving

    asyncio.run(talk())
    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def status(handler: StreamableHTTPHandler) -> int:
    message = call(1, "echo", modern=True, text="x")
    async with in_process(handler) as client:
        return (await client.post("/", json=message, headers=headers_of(message))).status_code


def test_an_event_loop_that_survives_a_drain_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "REOPEN_SECONDS", 0.2)
    entered: list[str] = []

    async def talk() -> None:
        handler = StreamableHTTPHandler(echo_server(entered))
        assert await call_in_process(handler, "before") == "before"
        for _ in range(2):
            await lifecycle.drain_on_signal(closes=True)
            assert await status(handler) == 503
            with anyio.fail_after(10):
                while await status(handler) == 503:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await call_in_process(handler, "after") == "after"
        await lifecycle.close()

    asyncio.run(talk())
    assert entered == ["entered", "left"] * 3


def test_a_server_that_starts_after_a_drain_in_the_same_event_loop_serves_at_once() -> None:
    entered: list[str] = []

    async def talk() -> None:
        handler = StreamableHTTPHandler(echo_server(entered))
        for _ in range(2):
            start, stop = asyncio.Event(), asyncio.Event()
            messages: list[Any] = [{"type": "lifespan.startup"}]

            async def receive(stop: asyncio.Event = stop, messages: list[Any] = messages) -> Any:
                if messages:
                    return messages.pop()
                await stop.wait()
                return {"type": "lifespan.shutdown"}

            async def send(message: Any, start: asyncio.Event = start) -> None:
                start.set()

            lifespan = asyncio.create_task(handler.lifespan({"type": "lifespan"}, receive, send))
            await start.wait()
            assert await call_in_process(handler, "served") == "served"
            await lifecycle.drain_on_signal(closes=False)
            assert await status(handler) == 503
            stop.set()
            await lifespan

    asyncio.run(talk())
    assert entered == ["entered", "left"] * 2
