"""One record for each call: by the signal ``call_finished`` and in the log, over real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, PromptReference

from tests.support import in_django
from tests.support.harness import (
    DEADLINE,
    INITIALIZE,
    INITIALIZED,
    Notes,
    call,
    parameters,
    runmcp,
    serving_http,
    wait_until,
)
from tests.support.private_redis import Redis
from tests.support.raw_http import headers_of
from tests.support.workers import started

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("users")]
MODES = ["auto", "legacy"]
SERVER = {
    **in_django.ENVIRONMENT,
    "TEST_MCP_SERVING": json.dumps(
        {"SERVER": "tests.project.recorded_asgi.server", "HTTP_SERVER": "tests.project.recorded_asgi.build_daphne"}
    ),
}
NAMED = ["--server", "tests.project.recorded_asgi.server"]


def env(notes: Notes, **changes: str) -> dict[str, str]:
    return {**SERVER, **notes.env, **changes}


def serving(notes: Notes, **changes: str) -> Any:
    builder = ["--http-server", "tests.project.recorded_asgi.build_daphne"]
    return serving_http(*NAMED, *builder, env=env(notes, **changes))


def records(notes: Notes, number: int) -> list[dict[str, Any]]:
    """This many records, once they are noted; fails if there are more."""

    def noted() -> list[dict[str, Any]]:
        return [json.loads(line) for line in notes.all() if line.startswith("{")]

    wait_until(lambda: len(noted()) >= number, f"{number} records; noted: {notes.all()}")
    found = noted()
    assert len(found) == number, found
    return found


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    anyio.run(within_the_deadline)


async def declines(*_: Any) -> ElicitResult:
    return ElicitResult(action="decline")


@asynccontextmanager
async def connected(server: str | StdioServerParameters, mode: str, **headers: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http:
        target = streamable_http_client(server, http_client=http) if isinstance(server, str) else server
        async with Client(target, mode=mode, elicitation_callback=declines) as client:
            yield client


@pytest.fixture(params=["stdio", "http", "json"])
def served(request: pytest.FixtureRequest, notes: Notes) -> Iterator[str | StdioServerParameters]:
    if request.param == "stdio":
        yield parameters("--user", "ann", *NAMED, **env(notes))
    else:
        with serving(notes) as (_, address):
            yield f"{address}/{'mcp' if request.param == 'http' else 'json'}"


@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_call_has_one_record_that_says_who_called_what(
    mode: str, served: str | StdioServerParameters, notes: Notes
) -> None:
    async def work() -> None:
        async with connected(served, mode, **{"X-User": "ann"}) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            await client.read_resource("recorded://one")
            await client.get_prompt("greet", {"name": "Bob"})
            reference = PromptReference(type="ref/prompt", name="greet")
            await client.complete(reference, {"name": "name", "value": "A"})
            await client.list_tools()

    run(work)
    found = records(notes, 4)
    assert [(each["method"], each["name"]) for each in found] == [
        ("tools/call", "add"),
        ("resources/read", "recorded://one"),
        ("prompts/get", "greet"),
        ("completion/complete", "greet"),
    ]
    is_http = isinstance(served, str)
    for each in found:
        assert (each["outcome"], each["reason"]) == ("ok", "")
        assert each["user"] == "ann"
        assert each["user_id"] == str(in_django.user("ann").pk)
        assert each["client"] == "mcp"
        assert each["client_version"]
        assert each["transport"] == ("http" if is_http else "stdio")
        assert each["protocol_version"] == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert bool(each["session"]) == (is_http and mode == "legacy")
        assert 0 <= each["thread_wait"] <= each["duration"] < DEADLINE
        assert each["answer_size"] > 10
        assert each["token"] is None
    assert len({each["request_id"] for each in found}) == 4


@pytest.mark.parametrize("mode", MODES)
def test_the_outcome_and_the_reason_are_those_of_the_call(
    mode: str, served: str | StdioServerParameters, notes: Notes
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("broken", {}),
        ("sold_out", {}),
        ("hidden", {}),
        ("missing", {}),
        ("add", {"a": "one"}),
        ("calls_hidden", {}),
        ("erase", {}),
    ]

    async def work() -> None:
        async with connected(served, mode, **{"X-User": "ann"}) as client:
            for name, arguments in calls:
                with suppress(MCPError):
                    await client.call_tool(name, arguments)
            with pytest.raises(MCPError):
                await client.read_resource("recorded://two")
            with pytest.raises(MCPError):
                await client.get_prompt("greet", {})

    run(work)
    asked = [("erase", "asked", "")] if mode == "auto" else []
    cannot_ask = mode == "legacy" and isinstance(served, str) and served.endswith("/json")
    expected = [
        ("broken", "failed", "LookupError"),
        ("sold_out", "tool_error", ""),
        ("hidden", "refused", "permission"),
        ("missing", "refused", "unknown"),
        ("add", "refused", "arguments"),
        ("calls_hidden", "ok", ""),
        *asked,
        ("erase", "refused", "elicitation") if cannot_ask else ("erase", "declined", ""),
        ("recorded://two", "refused", "unknown"),
        ("greet", "refused", "arguments"),
    ]
    found = records(notes, len(expected))
    assert [(each["name"], each["outcome"], each["reason"]) for each in found] == expected
    assert "the secret" not in json.dumps(found)


@pytest.mark.parametrize("mode", MODES)
def test_a_record_names_the_token_without_its_secret(mode: str, notes: Notes) -> None:
    async def work(address: str) -> None:
        async with connected(f"{address}/token", mode, Authorization="Bearer ann-read") as client:
            await client.call_tool("add", {"a": 1, "b": 2})

    with serving(notes) as (_, address):
        run(lambda: work(address))
        (found,) = records(notes, 1)
    assert (found["user"], found["token"]) == ("ann", "app of ann")
    assert "ann-read" not in json.dumps(found)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_token_lacks_a_scope_is_recorded_as_refused(mode: str, notes: Notes) -> None:
    async def work(address: str) -> None:
        async with connected(f"{address}/token", mode, Authorization="Bearer ann-read") as client:
            with pytest.raises((MCPError, httpx2.HTTPStatusError)):
                await client.call_tool("scoped", {})

    with serving(notes) as (_, address):
        run(lambda: work(address))
        (found,) = records(notes, 1)
    assert (found["name"], found["outcome"], found["reason"]) == ("scoped", "refused", "scope")
    assert (found["user"], found["token"]) == ("ann", "app of ann")


def test_a_broken_receiver_is_logged_and_the_others_get_the_record(notes: Notes) -> None:
    async def work(address: str) -> None:
        async with connected(f"{address}/mcp", "auto") as client:
            for _ in range(2):
                result = await client.call_tool("add", {"a": 1, "b": 2})
                assert not result.is_error

    with serving(notes, TEST_BROKEN_RECEIVER="1") as (process, address):
        run(lambda: work(address))
        process.wait_for("a broken receiver")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert [each["outcome"] for each in records(notes, 2)] == ["ok", "ok"]


def test_the_time_waited_for_a_thread_is_measured(notes: Notes) -> None:
    async def work(address: str) -> None:
        async with connected(f"{address}/mcp", "auto") as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "hold", {})
            await anyio.to_thread.run_sync(notes.wait_for, "hold runs")
            tasks.start_soon(client.call_tool, "add", {"a": 1, "b": 2})
            await anyio.sleep(0.3)
            notes.path.write_text(f"{notes.path.read_text()}go\n")

    with serving(notes) as (_, address):
        run(lambda: work(address))
        found = {each["name"]: each for each in records(notes, 2)}
    assert found["add"]["thread_wait"] > 0.1
    assert found["add"]["duration"] >= found["add"]["thread_wait"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_the_client_cancels_is_recorded_as_cancelled(transport: str, notes: Notes) -> None:
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    if transport == "stdio":
        with runmcp(*NAMED, env=env(notes)) as process:
            process.send(INITIALIZE, INITIALIZED, call(1, "slow"))
            notes.wait_for("slow runs")
            process.send(cancelled)
            (found,) = records(notes, 1)
    else:
        with serving(notes) as (_, address):
            message = call(1, "slow", modern=True)

            async def leave() -> None:
                async with httpx2.AsyncClient(timeout=DEADLINE) as http, anyio.create_task_group() as tasks:

                    async def post() -> None:
                        await http.post(f"{address}/mcp", json=message, headers=headers_of(message))

                    tasks.start_soon(post)
                    await anyio.to_thread.run_sync(notes.wait_for, "slow runs")
                    tasks.cancel_scope.cancel()

            run(leave)
            (found,) = records(notes, 1)
    assert (found["name"], found["outcome"]) == ("slow", "cancelled")


@pytest.mark.parametrize("tool", ["slow", "hold", "shielded"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_call_that_a_shutdown_ends_is_recorded_as_cut(transport: str, tool: str, notes: Notes) -> None:
    timeout = ["--shutdown-timeout", "0.5"]
    if transport == "stdio":
        with runmcp(*NAMED, "--user", "ann", *timeout, env=env(notes)) as process:
            process.send(INITIALIZE, INITIALIZED, call(1, tool))
            notes.wait_for(f"{tool} runs")
            process.signal(signal.SIGTERM)
            assert process.wait() != 0
            (found,) = records(notes, 1)
    else:
        builder = ["--http-server", "tests.project.recorded_asgi.build_daphne"]
        with serving_http(*NAMED, *builder, *timeout, env=env(notes)) as (process, address):
            message = call(1, tool, modern=True)

            async def work() -> None:
                async with httpx2.AsyncClient(timeout=DEADLINE) as http, anyio.create_task_group() as tasks:

                    async def post() -> None:
                        with suppress(httpx2.HTTPError):
                            headers = {**headers_of(message), "X-User": "ann"}
                            await http.post(f"{address}/mcp", json=message, headers=headers)

                    tasks.start_soon(post)
                    await anyio.to_thread.run_sync(notes.wait_for, f"{tool} runs")
                    process.signal(signal.SIGTERM)

            run(work)
            assert process.wait() != 0
            (found,) = records(notes, 1)
    assert (found["name"], found["outcome"], found["user"]) == (tool, "cut", "ann")


def test_a_relayed_call_is_recorded_once_by_the_worker_that_has_the_session(notes: Notes, redis: Redis) -> None:
    async def work(first: str, second: str) -> None:
        async with httpx2.AsyncClient(headers={"X-User": "ann"}, timeout=DEADLINE) as http:
            opened = await http.post(f"{first}/mcp", json=INITIALIZE, headers=headers_of(INITIALIZE))
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
            for address in (first, second):
                for message in (INITIALIZED, call(address, "add", a=1, b=2)):
                    headers = {**headers_of(message), **session}
                    answer = await http.post(f"{address}/mcp", json=message, headers=headers)
                    assert answer.status_code in (200, 202), answer.text

    with started("uvicorn", 2, redis, "tests.project.recorded_asgi", env=env(notes)) as workers:
        first, second = (worker.address for worker in workers)
        run(lambda: work(first, second))
        found = records(notes, 2)
    assert [each["request_id"] for each in found] == [first, second]
    assert {(each["user"], each["client"], each["outcome"]) for each in found} == {("ann", "test", "ok")}
    assert found[0]["session"] == found[1]["session"] is not None


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "calls": {"format": "RECORD %(message)s|%(mcp_user)s|%(mcp_name)s|%(mcp_outcome)s|%(mcp_duration)s"}
    },
    "handlers": {"calls": {"class": "logging.StreamHandler", "formatter": "calls"}},
    "loggers": {"mcp_serving.calls": {"level": "INFO", "handlers": ["calls"], "propagate": False}},
}


def test_the_logger_writes_one_line_with_fields_and_a_client_cannot_forge_a_second(notes: Notes) -> None:
    forged = "x\nRECORD forged" + "y" * 10_000
    with runmcp(*NAMED, "--user", "ann", env=env(notes, TEST_RECORDS="0", TEST_LOGGING=json.dumps(LOGGING))) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "add", a=1, b=2), call(2, forged))
        first = process.wait_for(r"RECORD (.*)\|ann\|add\|ok\|[\d.e-]+")
        assert first[1].startswith("tools/call add: ok, ")
        process.wait_for(r"RECORD tools/call x\\nRECORD forgedy+: refused \(unknown\), .*\|refused\|")
        lines = [line for line in process.errors.splitlines() if "RECORD" in line]
    assert len(lines) == 2
    assert max(map(len, lines)) < 1000


def test_nothing_is_logged_while_the_level_is_not_info(notes: Notes) -> None:
    with runmcp(*NAMED, env=env(notes, TEST_RECORDS="0")) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "add", a=1, b=2))
        assert process.receive()["id"] == "initialize"
        assert process.receive()["id"] == 1
        assert "tools/call add" not in process.errors
