"""Rates in real processes: over stdio, and shared between workers in Redis, which may fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.support.asgi_servers import serving
from tests.support.harness import DEADLINE, INITIALIZE, MANAGE, ROOT, Process, call, environment, parameters, wait_until
from tests.support.private_redis import Redis
from tests.support.raw_http import headers_of
from tests.support.workers import Worker, started

pytestmark = pytest.mark.process

MODULE = "tests.project.rated_asgi"


def settings(redis: Redis, **more: str) -> dict[str, str]:
    given = {"SERVER": f"{MODULE}.server", "RATE_LIMIT_STORAGE": redis.url, **more}
    return {"TEST_MCP_SERVING": json.dumps(given)}


def post(
    worker: str, path: str = "/mcp", tool: str = "free", session: str | None = None, **headers: str
) -> httpx2.Response:
    message = call(1, tool, modern=session is None)
    headers = {**headers_of(message, session), **headers}
    return httpx2.post(f"{worker}{path}", json=message, headers=headers, timeout=DEADLINE)


def is_error(response: httpx2.Response) -> bool:
    assert response.status_code == 200, response.text
    return bool(response.json()["result"]["isError"])


PROXIED = json.dumps({"proxy_forwarded_address_header": "X-Forwarded-For"})


@pytest.mark.parametrize(
    ("server", "options", "env", "is_believed"),
    [
        ("runmcp", ["--server", "tests.project.rated.server"], {}, False),
        ("runmcp", ["--server", "tests.project.rated.server"], {"TEST_DAPHNE": PROXIED}, True),
        ("uvicorn", ["--no-proxy-headers"], {}, False),
        ("uvicorn", ["--proxy-headers", "--forwarded-allow-ips", "127.0.0.1"], {}, True),
        ("uvicorn", ["--proxy-headers", "--forwarded-allow-ips", "192.0.2.1"], {}, False),
    ],
)
def test_the_settings_of_the_web_server_say_whether_a_forwarded_address_counts(
    server: str, options: list[str], env: dict[str, str], is_believed: bool
) -> None:
    with serving(server, MODULE, *options, env={**env, "TEST_RATE": "1/h"}) as (_, address):
        addresses = ["192.0.2.7", "192.0.2.8", "192.0.2.8"]
        statuses = [post(address, **{"X-Forwarded-For": each}).status_code for each in addresses]
        assert statuses == ([200, 200, 429] if is_believed else [200, 429, 429])


@pytest.fixture(scope="module")
def workers(redis: Redis) -> Iterator[list[Worker]]:
    with started("uvicorn", 2, redis, MODULE, env=settings(redis)) as workers:
        yield workers


def test_workers_share_the_count_of_a_handler_in_redis(workers: list[Worker]) -> None:
    addresses = [worker.address for worker in workers] * 5
    responses = [post(address) for address in addresses]
    assert [each.status_code for each in responses] == [200] * 8 + [429] * 2
    assert 3500 < int(responses[-1].headers["retry-after"]) <= 3600


def test_a_relayed_call_counts_once_for_its_tool(workers: list[Worker]) -> None:
    """Three calls are allowed. The session is in the first worker."""
    home, away = (f"{worker.address}/tool" for worker in workers)
    opened = httpx2.post(home, json=INITIALIZE, headers=headers_of(INITIALIZE))
    session = opened.headers["mcp-session-id"]
    assert [is_error(post(away, "", "rated", session)) for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("counted", ["here", "away"])
def test_a_relayed_request_counts_once_for_its_handler(counted: str, redis_of_its_own: Redis) -> None:
    with started("uvicorn", 2, redis_of_its_own, MODULE, env=settings(redis_of_its_own)) as workers:
        home, away = (f"{worker.address}/mcp" for worker in workers)
        opened = httpx2.post(home, json=INITIALIZE, headers=headers_of(INITIALIZE))
        session = opened.headers["mcp-session-id"]
        urls = [away if counted == "away" else home] * 8
        assert [post(url, "", "free", session).status_code for url in urls] == [200] * 7 + [429]


@contextmanager
def during_an_outage(redis: Redis, **more: str) -> Iterator[tuple[Process, str]]:
    with serving("uvicorn", MODULE, env=settings(redis, **more)) as (process, address):
        assert post(address).status_code == 200
        redis.stop()
        yield process, address


def test_calls_pass_while_the_storage_is_unavailable_and_the_outage_is_logged_once(redis_of_its_own: Redis) -> None:
    with during_an_outage(redis_of_its_own) as (process, address):
        assert [post(address).status_code for _ in range(20)] == [200] * 20
        assert not any(is_error(post(address, "/tool", "rated")) for _ in range(10))
        assert process.errors.count("The storage of the rate limits cannot be used (ConnectionError: ") == 1
        redis_of_its_own.start()
        wait_until(lambda: post(address).status_code == 429, "the rate holds again")
        assert process.errors.count("The storage of the rate limits can be used again.") == 1
        assert "Traceback" not in process.errors


def test_a_storage_that_hangs_holds_up_one_call_and_no_other(redis_of_its_own: Redis) -> None:
    with serving("uvicorn", MODULE, env=settings(redis_of_its_own)) as (process, address):
        assert post(address).status_code == 200
        with redis_of_its_own.hanging():
            assert [post(address).status_code for _ in range(20)] == [200] * 20
        assert process.errors.count("The storage of the rate limits cannot be used (TimeoutError") == 1
        wait_until(lambda: post(address).status_code == 429, "the rate holds again")


def test_the_connections_to_the_storage_are_closed_at_the_end(redis_of_its_own: Redis) -> None:
    env = {**settings(redis_of_its_own), "PYTHONWARNINGS": "always::ResourceWarning"}
    with serving("uvicorn", MODULE, env=env) as (process, address), redis_of_its_own.client() as client:
        assert post(address).status_code == 200
        assert len(client.client_list()) == 2
        process.signal(signal.SIGTERM)
        wait_until(lambda: len(client.client_list()) == 1, "the connection is closed")
        process.wait()
        assert "unclosed" not in process.errors.lower()
        assert "Traceback" not in process.errors


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_of_the_sdk_is_told_when_to_try_again(mode: Any) -> None:
    told = r"Too many calls: 8 per hour are allowed. Try again in \d+ seconds."

    async def nine_calls(client: Client) -> None:
        for _ in range(9):
            await client.call_tool("free", {})

    async def work(address: str) -> None:
        with anyio.fail_after(DEADLINE):
            async with Client(streamable_http_client(f"{address}/mcp"), mode=mode) as client:
                with pytest.raises(MCPError, match=told):
                    await nine_calls(client)

    with serving("uvicorn", MODULE) as (_, address):
        anyio.run(work, address)


def test_calls_are_refused_while_the_storage_is_unavailable_if_the_setting_says_so(redis_of_its_own: Redis) -> None:
    with during_an_outage(redis_of_its_own, RATE_LIMIT_ON_OUTAGE="refuse") as (process, address):
        told = "Calls cannot be counted now. Try again in 1 second."
        for _ in range(5):
            refused = post(address)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["message"] == told
        assert told in post(address, "/tool", "rated").text
        assert not is_error(post(address, "/tool", "free"))
        assert process.errors.count("The storage of the rate limits cannot be used") == 1
        redis_of_its_own.start()
        wait_until(lambda: post(address).status_code == 200, "calls are served again")


def test_the_rate_of_a_tool_holds_over_stdio() -> None:
    async def work() -> None:
        process = parameters("--server", f"{MODULE}.server")
        with anyio.fail_after(DEADLINE):
            async with Client(stdio_client(process)) as client:
                errors = [(await client.call_tool("rated", {})).is_error for _ in range(4)]
                assert errors == [False, False, False, True]
                assert not (await client.call_tool("free", {})).is_error

    anyio.run(work)


def test_the_library_limits_is_imported_only_for_the_storage_that_a_setting_names() -> None:
    code = f"import sys, {MODULE}; sys.exit('limits' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment(), cwd=ROOT, timeout=60, check=False).returncode == 0


def test_runmcp_reports_a_storage_that_cannot_be_made_in_one_line() -> None:
    env = environment(TEST_MCP_SERVING=json.dumps({"RATE_LIMIT_STORAGE": "reddis://127.0.0.1:1/0"}))
    command = [*MANAGE, "runmcp", "--server", "tests.project.rated.server"]
    ended = subprocess.run(
        command, env=env, cwd=ROOT, timeout=60, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert "MCP_SERVING['RATE_LIMIT_STORAGE'] names a storage 'reddis' that cannot be made" in line
