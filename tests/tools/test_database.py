"""Django's connections in every kind of handler, on a PostgreSQL of the tests' own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp_types import ElicitResult, TextContent, TextResourceContents

from tests.support.harness import DEADLINE, MODERN_META, Notes, parameters, serving_http
from tests.support.harness import call as message_of
from tests.support.postgres import PostgreSQL
from tests.support.raw_http import headers_of

pytestmark = pytest.mark.process

MAX_THREADS = 4
TRANSPORTS = ["http", "stdio"]

Call = Callable[[Client, bool], Awaitable[int]]


def tool(name: str) -> Call:
    async def call(client: Client, wait: bool) -> int:
        result = await client.call_tool(name, {"wait": wait})
        assert not result.is_error, result.content
        assert result.structured_content is not None
        backend: int = result.structured_content["result"]
        return backend

    return call


def resource(uri: str) -> Call:
    async def call(client: Client, wait: bool) -> int:
        contents = (await client.read_resource(uri.format(wait=wait))).contents[0]
        assert isinstance(contents, TextResourceContents)
        return int(contents.text)

    return call


def prompt(name: str) -> Call:
    async def call(client: Client, wait: bool) -> int:
        content = (await client.get_prompt(name, {"wait": json.dumps(wait)})).messages[0].content
        assert isinstance(content, TextContent)
        return int(content.text)

    return call


SYNC = {
    "tool": tool("sync_tool"),
    "resolver": tool("resolving_tool"),
    "confirm": tool("write_tool"),
    "template": resource("orm://sync/{wait}"),
    "prompt": prompt("sync_prompt"),
}
ASYNC = {
    "async tool": tool("async_tool"),
    "another async tool": tool("async_tool"),
    "async resolver": tool("async_resolving_tool"),
    "async confirm": tool("async_write_tool"),
    "async template": resource("orm://async/{wait}"),
    "async prompt": prompt("async_prompt"),
}
WITHOUT_A_LATCH = {"resource": resource("orm://sync"), "async resource": resource("orm://async")}


async def accept(*_: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={})


@asynccontextmanager
async def client_of(transport: str, env: dict[str, str], mode: str = "auto") -> AsyncIterator[Client]:
    """A client of a project of its own, over HTTP or stdio."""
    with ExitStack() as stack:
        if transport == "stdio":
            target: Any = parameters("--transport", "stdio", **env)
        else:
            target = stack.enter_context(serving_http(env=env))[1] + "/mcp"
        with anyio.fail_after(2 * DEADLINE):
            async with Client(target, mode=mode, cache=None, elicitation_callback=accept) as client:  # type: ignore[arg-type]
                yield client


async def call_side_by_side(client: Client, calls: list[Call], wait: bool = False) -> list[int]:
    answers: list[int] = []

    async def call_one(call: Call) -> None:
        answers.append(await call(client, wait))

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call_one, call)
    return answers


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_slow_queries_of_every_kind_of_function_run_concurrently(
    postgres: PostgreSQL, transport: str, mode: str
) -> None:
    env = postgres.env() | {"TEST_MAX_THREADS": str(len(SYNC) + 1)}
    slow = [*SYNC.values(), *ASYNC.values()]

    async def run() -> None:
        async with client_of(transport, env, mode) as client, anyio.create_task_group() as group:
            with postgres.latched():
                group.start_soon(call_side_by_side, client, slow, True)
                await postgres.held_up(len(slow))
                for quick in [*SYNC.values(), *ASYNC.values(), *WITHOUT_A_LATCH.values()]:
                    assert await quick(client, False) > 0
                assert postgres.connections("wait_event = 'advisory'") == len(slow)

    anyio.run(run)


@pytest.mark.parametrize("max_age", [0, 60])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_next_call_works_after_the_database_has_ended_every_connection(
    postgres: PostgreSQL, transport: str, max_age: int
) -> None:
    every = [*SYNC.values(), *ASYNC.values(), *WITHOUT_A_LATCH.values()]
    kept = MAX_THREADS if max_age else 0

    async def run() -> None:
        async with client_of(transport, postgres.env(CONN_MAX_AGE=max_age), "auto") as client:
            for call in every:
                await fill_the_threads(postgres, client)
                await postgres.reaches(kept)
                # PostgreSQL may list one more: a connection that has just been closed.
                assert kept <= await postgres.end_connections() <= kept + 1
                assert await call(client, False) > 0
            await fill_the_threads(postgres, client)
            await postgres.end_connections()
            assert len(await call_side_by_side(client, every)) == len(every)

    anyio.run(run)


async def fill_the_threads(postgres: PostgreSQL, client: Client) -> None:
    """Have every thread of the pool open a connection."""
    async with anyio.create_task_group() as group:
        with postgres.latched():
            group.start_soon(call_side_by_side, client, [SYNC["tool"]] * MAX_THREADS, True)
            await postgres.held_up(MAX_THREADS)


def test_a_call_uses_the_connection_that_an_earlier_call_kept(postgres: PostgreSQL) -> None:
    async def run() -> None:
        env = postgres.env(CONN_MAX_AGE=60) | {"TEST_MAX_THREADS": "1"}
        async with client_of("stdio", env) as client:
            backends = {await call(client, False) for call in SYNC.values() for _ in range(2)}
            assert len(backends) == 1
            await ASYNC["async tool"](client, False)
            await postgres.reaches(1)  # the thread of the async call is gone, and its connection with it

    anyio.run(run)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_at_most_max_threads_sync_functions_run_at_once_and_async_ones_do_not_wait(
    postgres: PostgreSQL, transport: str, notes: Notes
) -> None:
    async def run() -> None:
        async with (
            client_of(transport, postgres.env() | notes.env) as client,
            anyio.create_task_group() as group,
        ):
            with postgres.latched():
                group.start_soon(call_side_by_side, client, [SYNC["tool"]] * (MAX_THREADS + 3), True)
                await postgres.held_up(MAX_THREADS)
                # Sent after the others: by the time that this one is answered, those have reached the server.
                assert await ASYNC["async tool"](client, False) > 0
                assert notes.all().count("sync_tool ran") == MAX_THREADS
                await postgres.held_up(MAX_THREADS)
        assert notes.all().count("sync_tool ran") == MAX_THREADS + 3

    anyio.run(run)


# Two hundred at once

LOAD = 200
ROUNDS = 5

Message = tuple[str, dict[str, Any]]

TOOL: Message = ("tools/call", {"name": "sync_tool", "arguments": {"wait": True}})
ASYNC_TOOL: Message = ("tools/call", {"name": "async_tool", "arguments": {"wait": True}})
EVERY_OTHER_SYNC: list[Message] = [
    ("tools/call", {"name": "raising_tool", "arguments": {"wait": True}}),
    ("tools/call", {"name": "resolving_tool", "arguments": {"wait": True}}),
    ("tools/call", {"name": "write_tool", "arguments": {"wait": True}}),
    ("resources/read", {"uri": "orm://sync/true"}),
    ("prompts/get", {"name": "sync_prompt", "arguments": {"wait": "true"}}),
]
EVERY_OTHER_ASYNC: list[Message] = [
    ("tools/call", {"name": "raising_async_tool", "arguments": {"wait": True}}),
    ("tools/call", {"name": "async_resolving_tool", "arguments": {"wait": True}}),
    ("tools/call", {"name": "async_write_tool", "arguments": {"wait": True}}),
    ("resources/read", {"uri": "orm://async/true"}),
    ("prompts/get", {"name": "async_prompt", "arguments": {"wait": "true"}}),
]


class Post:
    """A call over HTTP, by hand: two hundred of the SDK's client are slow, and none of them hangs up."""

    def __init__(self, address: str, message: Message) -> None:
        self._host, _, self._port = address.removeprefix("http://").partition(":")
        self._method, self._params = message

    async def send(self) -> None:
        meta = MODERN_META | {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
        message = {"jsonrpc": "2.0", "id": 1, "method": self._method, "params": {**self._params, "_meta": meta}}
        body = json.dumps(message).encode()
        head = [
            "POST /mcp HTTP/1.1",
            f"Host: {self._host}",
            "Connection: close",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            "MCP-Protocol-Version: 2026-07-28",
            f"Mcp-Method: {self._method}",
            f"Mcp-Name: {self._params.get('uri') or self._params['name']}",
            f"Content-Length: {len(body)}",
        ]
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        self._writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await self._writer.drain()

    async def receive(self) -> bool:
        """Whether the answer is one, and no error."""
        head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head + body
        answer: dict[str, Any] = json.loads(body)
        assert "result" in answer, answer
        return not answer["result"].get("isError")

    def hang_up(self) -> None:
        self._writer.close()


async def call_at_once(
    postgres: PostgreSQL, address: str, messages: list[Message], at_once: int, hang_up: bool = False
) -> int:
    """Two hundred calls in flight, ``at_once`` of them in their queries; then let the queries go on.

    Returns how many were answered, and with no error.
    """
    assert len(messages) == LOAD
    posts = [Post(address, message) for message in messages]
    before = postgres.connections()
    with anyio.fail_after(2 * DEADLINE):
        with postgres.latched():
            await asyncio.gather(*(post.send() for post in posts))
            await postgres.held_up(at_once)
            assert postgres.connections() == max(at_once, before)
            if hang_up:
                for post in posts:
                    post.hang_up()
                await all_hang_ups_noticed(address)
        answers = [] if hang_up else await asyncio.gather(*(post.receive() for post in posts))
    for post in posts:
        post.hang_up()
    await postgres.reaches(before, within=1)
    return sum(answers)


async def all_hang_ups_noticed(address: str) -> None:
    async with Client(f"{address}/mcp", cache=None) as client:
        end = time.monotonic() + DEADLINE
        while (left := await called(client, "calls_in_flight") - 1) > 0:
            assert time.monotonic() < end, f"{left} calls are still served"
            await anyio.sleep(0.01)


async def called(client: Client, tool_name: str, **arguments: Any) -> Any:
    """The result of a tool; None if it failed."""
    result = await client.call_tool(tool_name, arguments)
    return None if result.is_error or result.structured_content is None else result.structured_content["result"]


async def most_connections(address: str) -> int:
    async with Client(f"{address}/mcp", cache=None) as client:
        most: int = await called(client, "most_connections")
        return most


@pytest.fixture(scope="module")
def served(postgres: PostgreSQL) -> Iterator[str]:
    """The address of a project that keeps no connection. With DEBUG, one more looks for unapplied migrations."""
    with serving_http(env=postgres.env() | {"TEST_DEBUG": "0"}) as (_, address):
        yield address


@pytest.mark.parametrize("messages", [[TOOL] * LOAD, EVERY_OTHER_SYNC * (LOAD // 5)], ids=["tools", "others"])
def test_two_hundred_sync_calls_use_max_threads_connections_and_leave_none(
    postgres: PostgreSQL, served: str, messages: list[Message]
) -> None:
    async def run() -> None:
        for _ in range(ROUNDS):
            answered = await call_at_once(postgres, served, messages, MAX_THREADS)
            assert answered == LOAD - sum(params.get("name") == "raising_tool" for _, params in messages)
        assert await most_connections(served) == MAX_THREADS
        assert postgres.connections() == 0

    anyio.run(run)


def test_two_hundred_async_calls_use_a_connection_each_and_leave_none(postgres: PostgreSQL) -> None:
    messages = [ASYNC_TOOL] * (LOAD // 2) + EVERY_OTHER_ASYNC * (LOAD // 10)

    async def run() -> None:
        with serving_http(env=postgres.env()) as (_, address):
            for _ in range(ROUNDS):
                assert await call_at_once(postgres, address, messages, LOAD) == LOAD * 9 // 10
            assert await most_connections(address) == LOAD
            assert postgres.connections() == 0

    anyio.run(run)


def test_two_hundred_clients_that_hang_up_leave_no_connection_and_no_call_that_waits(
    postgres: PostgreSQL, notes: Notes
) -> None:
    messages = [TOOL, ASYNC_TOOL] * (LOAD // 2)

    async def run() -> None:
        with serving_http(env=postgres.env() | notes.env) as (process, address):
            for _ in range(ROUNDS):
                await call_at_once(postgres, address, messages, MAX_THREADS + LOAD // 2, hang_up=True)
            assert postgres.connections() == 0
            assert notes.all() == ["sync_tool ran"] * MAX_THREADS * ROUNDS
            assert "Traceback" not in process.errors

    anyio.run(run)


def test_two_hundred_calls_give_djangos_pool_back_every_connection(postgres: PostgreSQL) -> None:
    pool = {"min_size": MAX_THREADS, "max_size": MAX_THREADS, "timeout": DEADLINE}
    messages = [TOOL, ASYNC_TOOL] * (LOAD // 4) + [*EVERY_OTHER_SYNC, *EVERY_OTHER_ASYNC] * (LOAD // 20)

    async def run() -> None:
        with serving_http(env=postgres.env(OPTIONS={"pool": pool})) as (_, address):
            async with Client(f"{address}/mcp", cache=None) as client:
                await fill_the_threads(postgres, client)
                await postgres.reaches(MAX_THREADS)
                for _ in range(ROUNDS):
                    assert await call_at_once(postgres, address, messages, MAX_THREADS) == LOAD * 9 // 10
                # All of them can be had again: the pool waits for a connection that was not given back.
                await fill_the_threads(postgres, client)

    anyio.run(run)


def test_a_connection_of_djangos_pool_that_the_database_ended_is_replaced(postgres: PostgreSQL) -> None:
    # One connection: psycopg's pool pauses for longer and longer after each broken one that it finds.
    env = postgres.env(OPTIONS={"pool": {"min_size": 1, "max_size": 1}}, CONN_HEALTH_CHECKS=True)

    async def run() -> None:
        async with client_of("http", env) as client:
            for each in [SYNC["tool"], ASYNC["async tool"]]:
                await each(client, False)
                assert await postgres.end_connections() == 1
                assert await each(client, False) > 0

    anyio.run(run)


# Transactions


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("tool_name", ["add_in_a_transaction", "add_in_a_transaction_from_async"])
def test_a_transaction_is_committed_or_rolled_back_as_in_a_view(
    postgres: PostgreSQL, notes: Notes, transport: str, tool_name: str
) -> None:
    good, bad = f"{transport} {tool_name} good", f"{transport} {tool_name} bad"

    async def run() -> None:
        async with client_of(transport, postgres.env() | notes.env) as client:
            assert await called(client, tool_name, name=good, fail=False) is False
            assert await called(client, tool_name, name=bad, fail=True) is None

    anyio.run(run)
    assert (postgres.rows(good), postgres.rows(bad)) == (1, 0)
    assert notes.all() == [f"{good} added", f"{good} committed, in a transaction: False", f"{bad} added"]


def test_a_transaction_that_a_tool_leaves_open_does_not_reach_the_next_call(postgres: PostgreSQL) -> None:
    async def run() -> None:
        async with client_of("stdio", postgres.env(CONN_MAX_AGE=60) | {"TEST_MAX_THREADS": "1"}) as client:
            await client.call_tool("leave_a_transaction_open", {"name": "left open"})
            assert await called(client, "add", name="after it", fail=False) is False

    anyio.run(run)
    assert (postgres.rows("left open"), postgres.rows("after it")) == (0, 1)


def test_an_exception_outside_a_transaction_rolls_nothing_back(postgres: PostgreSQL) -> None:
    async def run() -> None:
        async with client_of("stdio", postgres.env()) as client:
            assert await called(client, "add", name="autocommitted", fail=True) is None

    anyio.run(run)
    assert postgres.rows("autocommitted") == 1


def test_atomic_requests_wraps_each_sync_function_as_it_does_a_view(postgres: PostgreSQL) -> None:
    async def run() -> None:
        async with client_of("stdio", postgres.env(ATOMIC_REQUESTS=True)) as client:
            assert await called(client, "add", name="with ATOMIC_REQUESTS", fail=False) is True
            assert await called(client, "add", name="with ATOMIC_REQUESTS", fail=True) is None
            assert await ASYNC["async tool"](client, False) > 0
            assert await called(client, "add_outside_of_transactions", name="without") is False

    anyio.run(run)
    assert postgres.rows("with ATOMIC_REQUESTS") == 1


# Who calls


def called_with(address: str, path: str, token: str = "any") -> int:
    """The status of a call of a tool that uses no database."""
    message = message_of("one", "no_database", modern=True)
    headers = {**headers_of(message), "Authorization": f"Bearer {token}"}
    return httpx2.post(address + path, json=message, headers=headers, timeout=DEADLINE).status_code


@pytest.mark.parametrize("path", ["/by-token", "/by-token-async"])
def test_the_user_of_a_token_is_found_after_the_database_has_ended_every_connection(
    postgres: PostgreSQL, path: str
) -> None:
    with serving_http(env=postgres.env()) as (_, address):
        for _ in range(3):
            assert called_with(address, path) == 200
            assert httpx2.get(f"{address}/backend").status_code == 200
            anyio.run(postgres.reaches, 0)
            anyio.run(postgres.end_connections)


@pytest.mark.parametrize("path", ["/by-token", "/by-token-async"])
def test_a_slow_lookup_of_a_user_delays_no_other_request(postgres: PostgreSQL, path: str) -> None:
    with serving_http(env=postgres.env()) as (_, address), ThreadPoolExecutor(5) as clients:
        with postgres.latched():
            slow = [clients.submit(called_with, address, path, "slow") for _ in range(5)]
            anyio.run(postgres.held_up, 5)
            assert called_with(address, path) == 200
        assert [each.result() for each in slow] == [200] * 5


# What it costs


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_async_function_that_uses_no_database_starts_no_thread(postgres: PostgreSQL, transport: str) -> None:
    async def run() -> None:
        async with client_of(transport, postgres.env()) as client:

            async def hops() -> list[str]:
                result: list[str] = await called(client, "no_database")
                return result

            before = await hops()
            for _ in range(5):
                assert await hops() == before
            await client.list_tools()
            assert await hops() == before
            await client.call_tool("sync_without_database", {})
            assert (await hops())[len(before) :] == ["submitted a call", "started mcp-serving_0"]

    anyio.run(run)
