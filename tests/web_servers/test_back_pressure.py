"""A client that does not read holds up its own answer and nothing else, and not for ever."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import ssl
import time
from pathlib import Path

import pytest

from tests.project.pattern import pattern_of
from tests.support.asgi_servers import DAPHNE, serving
from tests.support.daphne_limits import LITTLE, bounded, bounded_over_tls, peak_memory
from tests.support.harness import Notes, Process, call, serving_http, wait_until
from tests.support.http_client import Clients, Connection
from tests.support.raw_http import Request, routing

pytestmark = [pytest.mark.process, pytest.mark.serial]

MEGABYTES = 200


async def flooding(clients: Clients, how: str) -> Connection:
    """A client whose answer has 200 MB, of which it has read nothing."""
    if how == "view":
        connection = await clients.connect()
        connection.send("GET", f"/flood/?megabytes={MEGABYTES}")
        return connection
    message = call(1, "flood", modern=how == "2026-07-28", megabytes=MEGABYTES)
    params = message["params"]
    params["_meta"] = {**params.get("_meta", {}), "progressToken": 1}
    connection = await (clients.modern() if how == "2026-07-28" else clients.session())
    connection.send("POST", "/mcp", message, **(routing(message) if how == "2026-07-28" else {}))
    return connection


async def assert_others_are_served(clients: Clients, times: int = 20) -> None:
    other = await clients.connect()
    for _ in range(times):
        before = time.monotonic()
        assert (await other.request("GET", "/quick/")).body == b"quick"
        assert time.monotonic() - before < 2


@pytest.mark.parametrize(
    ("server", "how"),
    [(server, how) for server in DAPHNE for how in ("2025-11-25", "2026-07-28")] + [("runmcp", "view")],
)
def test_an_answer_that_is_not_read_waits_outside_of_memory_and_is_lost_nowhere(
    server: str, how: str, notes: Notes
) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            await assert_others_are_served(clients, times=1)
            before = peak_memory(process)
            unread = [await flooding(clients, how) for _ in range(3)]
            await asyncio.to_thread(notes.wait_for, "flood view started" if how == "view" else "flood started", 3)
            await assert_others_are_served(clients)
            grown = peak_memory(process) - before
            print(f"grown by {grown / 1e6:.1f} MB")
            assert grown < LITTLE
            await assert_nothing_is_lost(unread[0], how)
            assert peak_memory(process) - before < LITTLE

    with serving(server, env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


async def assert_nothing_is_lost(connection: Connection, how: str) -> None:
    answer = await connection.head()
    if how == "view":
        received = hashlib.sha256()
        async for chunk in connection.chunks(answer):
            received.update(chunk)
        expected = hashlib.sha256()
        for number in range(MEGABYTES):
            expected.update(b"%08d" % number * 2**17)
        assert received.hexdigest() == expected.hexdigest()
        return
    events = connection.events(answer)
    for step in range(400):  # 25 MB of it: several times what fits into all the buffers on the way
        assert (await anext(events))["params"]["message"] == f"{step:08}" * 2**13


def test_over_tls_too_it_waits_outside_of_memory(tmp_path: Path) -> None:
    def ask(connection: ssl.SSLSocket, path: str) -> bytes:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(16)

    with bounded_over_tls(tmp_path, write_timeout=1) as (process, connect), connect() as unread, connect() as read:
        with connect() as other:
            assert ask(other, "/quick/") == b"HTTP/1.1 200 OK\r"
        before = peak_memory(process)
        ask(unread, f"/flood/?megabytes={MEGABYTES}")
        process.wait_for("its client has stopped reading")
        ask(read, f"/flood/?megabytes={MEGABYTES}")
        size = 0
        while chunk := read.recv(2**20):
            size += len(chunk)
        assert size > MEGABYTES * 2**20
        assert peak_memory(process) - before < LITTLE


@pytest.mark.parametrize("how", ["2026-07-28", "view"])
def test_a_client_that_leaves_unread_is_noticed_at_once(how: str, notes: Notes) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            unread = await flooding(clients, how)
            await unread.head()
            await assert_others_are_served(clients, times=3)
            unread.reset()
            await asyncio.to_thread(notes.wait_for, "flood view finally" if how == "view" else "flood cancelled", 1, 5)

    with serving_http(env=notes.env) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


@pytest.mark.parametrize("how", ["2025-11-25", "2026-07-28", "view"])
def test_a_client_that_reads_nothing_until_the_write_timeout_counts_as_one_that_has_left(
    how: str, notes: Notes
) -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            unread = await flooding(clients, how)
            await asyncio.to_thread(process.wait_for, "its client has stopped reading the answer", 10)
            if how != "2025-11-25":  # there, what becomes of a call without its client is the session's
                await asyncio.to_thread(notes.wait_for, "flood view finally" if how == "view" else "flood cancelled")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await unread.answer()
            await assert_others_are_served(clients, times=1)

    with bounded(notes, write_timeout=1) as (process, address):
        asyncio.run(talk(process, address))
        assert "Traceback" not in process.errors


@pytest.mark.parametrize(
    ("path", "guarded"),
    [("/pattern/?bytes=20000001", True), ("/flood/?megabytes=20", True), ("/pattern/?bytes=20000001", False)],
)
def test_a_client_that_reads_slowly_has_all_the_time_it_needs(path: str, guarded: bool) -> None:
    async def talk(address: str) -> None:
        async with Clients(address) as clients:
            slow = await clients.connect()
            slow.send("GET", path)
            answer = await slow.head()
            received = hashlib.sha256()
            size = 0
            source = slow.parts(answer) if "content-length" in answer.headers else slow.chunks(answer)
            started = time.monotonic()
            async for part in source:
                received.update(part)
                size += len(part)
                await asyncio.sleep(max(0, started + size / 8_000_000 - time.monotonic()))
            if path.startswith("/pattern/"):
                assert received.hexdigest() == hashlib.sha256(pattern_of(20_000_001)).hexdigest()
            else:
                assert size == 20 * 2**20
            assert time.monotonic() - started > 2

    with bounded(guarded=guarded, write_timeout=1, keep_alive_timeout=1) as (_, address):
        asyncio.run(talk(address))


def test_streams_that_are_not_read_neither_delay_the_exit_nor_are_silently_lost() -> None:
    async def talk(process: Process, address: str) -> None:
        async with Clients(address) as clients:
            for how in ("2025-11-25", "2026-07-28", "view"):
                await (await flooding(clients, how)).head()
            await assert_others_are_served(clients, times=3)
            process.signal(signal.SIGTERM)
            before = time.monotonic()
            assert await asyncio.to_thread(process.wait) == 1
            assert time.monotonic() - before < 20

    with serving_http("--shutdown-timeout", "30") as (process, address):
        asyncio.run(talk(process, address))
        assert "3 clients reading an answer" in process.errors
        assert "Traceback" not in process.errors


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_response_that_was_sent_whole_and_is_not_read_is_given_up_too(connection: str) -> None:
    with bounded(guarded=False, write_timeout=1, keep_alive_timeout=1) as (_, address):

        def descriptors() -> int:
            found: int = json.loads(Request(address, "/internals/", headers={"Connection": "close"}).read())[
                "descriptors"
            ]
            return found

        before = descriptors()
        unread = Request(address, "/pattern/?bytes=30000000", headers={"Connection": connection})
        assert descriptors() == before + 1
        wait_until(lambda: descriptors() == before, "the connection is closed", timeout=10)
        unread.leave()
