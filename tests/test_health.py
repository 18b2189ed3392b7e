"""``mcp_serving.health``: live and ready, and the delay before a shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import pytest
from channels.routing import ProtocolTypeRouter, URLRouter
from django.test import override_settings

from mcp_serving import MCPServer, StreamableHTTPHandler, conf, health
from mcp_serving.asgi import lifecycle
from mcp_serving.runtime import runtimes
from tests.support.harness import DEADLINE, Process, call, runmcp, text_of

WITH_HEALTH = {"TEST_ASGI_APPLICATION": "tests.project.health_asgi.application"}


async def get(path: str) -> tuple[int, str]:
    """A request to the routes, in the process of the tests."""
    application = ProtocolTypeRouter({"http": URLRouter(health.urlpatterns("health"))})
    transport = httpx2.ASGITransport(application)
    async with httpx2.AsyncClient(transport=transport, base_url="http://10.1.2.3") as client:
        response = await client.get(path)
        return response.status_code, response.text


def only(handler: StreamableHTTPHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the handlers of other tests."""
    monkeypatch.setattr(lifecycle, "handlers", lambda: [handler])


@pytest.mark.parametrize("slash", ["", "/"])
def test_both_answer_200_for_any_host_name_while_the_server_can_be_started(
    slash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        only(StreamableHTTPHandler(MCPServer("healthy"), public=True), monkeypatch)
        assert await get(f"/health/live{slash}") == (200, "ok\n")
        assert await get(f"/health/ready{slash}") == (200, "ok\n")
        await lifecycle.close()

    asyncio.run(work())


def test_ready_is_503_while_the_lifespan_cannot_be_entered_and_the_log_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = True

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        if is_broken:
            raise RuntimeError("no such queue")
        yield

    async def work() -> None:
        nonlocal is_broken
        only(StreamableHTTPHandler(MCPServer("broken", lifespan=lifespan), public=True), monkeypatch)
        for _ in range(2):
            assert await get("/health/ready") == (503, "The MCP server cannot be started.\n")
            assert await get("/health/live") == (200, "ok\n")
        is_broken = False
        assert await get("/health/ready") == (200, "ok\n")
        await lifecycle.close()

    asyncio.run(work())
    logged = [message for message in caplog.messages if message.startswith("Not ready")]
    assert logged == ["Not ready, because the MCP server cannot be started: RuntimeError: no such queue."]


def test_ready_is_503_while_the_server_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        only(StreamableHTTPHandler(MCPServer("draining"), public=True), monkeypatch)
        assert (await get("/health/ready"))[0] == 200
        for runtime in runtimes():
            runtime.in_flight.draining = True
        assert await get("/health/ready") == (503, "The server is shutting down.\n")
        await lifecycle.close()

    asyncio.run(work())


@pytest.mark.parametrize("value", [-1, "soon", float("inf"), True])
def test_an_invalid_delay_is_a_problem_of_the_setting(value: object) -> None:
    with override_settings(MCP_SERVING={"SHUTDOWN_DELAY": value}):
        (problem,) = conf.problems()
    assert problem.startswith(f"MCP_SERVING['SHUTDOWN_DELAY']: The shutdown delay is {value!r}; it must be")


# A real process


def delayed(seconds: float) -> dict[str, str]:
    setting = {"SERVER": "tests.project.mcp.server", "SHUTDOWN_DELAY": seconds}
    return {**WITH_HEALTH, "TEST_MCP_SERVING": json.dumps(setting)}


@contextmanager
def serving_health(env: dict[str, str]) -> Iterator[tuple[Process, str]]:
    with runmcp("--transport", "http", "0", env=env) as process:
        yield process, process.wait_for(r"is at (http://127\.0\.0\.1:\d+)/mcp")[1]


@pytest.mark.process
def test_after_the_first_signal_it_is_not_ready_but_serves_until_the_delay_has_passed() -> None:
    with serving_health(delayed(2)) as (process, address), httpx2.Client(timeout=DEADLINE) as client:
        assert client.get(f"{address}/health/ready").status_code == 200
        process.signal(signal.SIGTERM)
        process.wait_for("Received SIGTERM: shutting down in 2 seconds.")
        assert client.get(f"{address}/health/ready").status_code == 503
        assert client.get(f"{address}/health/live").status_code == 200
        headers = {"Accept": "application/json, text/event-stream"}
        answer = httpx2.post(
            f"{address}/second/mcp", json=call(1, "echo", text="served"), headers=headers, timeout=DEADLINE
        )
        assert text_of(answer.json()) == "served"
        process.wait_for("Shutting down: received SIGTERM.")
        assert process.wait() == 0


@pytest.mark.process
def test_a_second_signal_ends_the_delay() -> None:
    with serving_health(delayed(600)) as (process, _):
        process.signal(signal.SIGTERM)
        process.wait_for("shutting down in 600 seconds")
        process.signal(signal.SIGTERM)
        process.wait_for("Shutting down: received SIGTERM.")
        assert process.wait() == 0
