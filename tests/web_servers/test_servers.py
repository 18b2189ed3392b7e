"""Every cell of the table in docs/servers.md is what the server of its column does here, as a real process."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi_servers import ALL, COMMANDS, serving
from tests.support.daphne_limits import LITTLE, peak_memory
from tests.support.documents import DOCS
from tests.support.harness import MODERN_META, Notes, Process, call, text_of
from tests.support.http_client import Clients, Connection, listen
from tests.support.raw_http import routing
from tests.web_servers.test_back_pressure import assert_others_are_served, flooding

PAGE = (DOCS / "servers.md").read_text()
SERVERS, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
TABLE = {what: dict(zip(ALL, cells, strict=True)) for what, *cells in ROWS}

SOON = 4.0
"""Seconds for what is a matter of milliseconds: all the servers start and run side by side."""

NOT_HELD_UP = 10.0
"""Seconds for the end of a process that waits for nothing any more. On a busy machine, the end of Python takes two."""

Cells = dict[str, str]


def yes(it_does: bool) -> str:
    return "yes" if it_does else "no"


def options_in(cell: str) -> list[str]:
    """The options with which it is a yes; on the page they give more time than a test has."""
    return [re.sub(r"\d+", "2", part) for option in re.findall(r"`(--[^`]+)`", cell) for part in option.split()]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cells]:
    """What each server did."""
    seen: dict[str, Cells] = {server: {} for server in ALL}
    with ThreadPoolExecutor(len(ALL)) as pool:
        for watch in (watch_it_work, watch_it_stop):
            folder = tmp_path_factory.mktemp(watch.__name__)
            for server, cells in zip(ALL, pool.map(watch, ALL, [folder / server for server in ALL]), strict=True):
                seen[server].update(cells)
    return seen


@pytest.mark.process
@pytest.mark.parametrize("server", ALL)
def test_a_server_does_what_the_table_says_of_it(seen: dict[str, Cells], server: str) -> None:
    told = {what: "yes" if cells[server].startswith("with ") else cells[server] for what, cells in TABLE.items()}
    assert seen[server] == told


def test_the_command_lines_on_the_page_are_those_of_the_tests_with_the_options_of_the_table() -> None:
    for server, command in COMMANDS.items():
        program, *options = command.split()
        options += [part for what in TABLE for part in re.findall(r"`(--[^`]+)`", TABLE[what][server])]
        shown = [line for line in PAGE.splitlines() if line.startswith(f"$ {program} mysite.asgi:application")]
        assert any(all(option in line for option in options) for line in shown), (server, options)


# What it does while it runs, and when it is stopped in the ordinary way


def watch_it_work(server: str, path: Path) -> Cells:
    notes = Notes(path)
    with serving(server, env={**notes.env, "TEST_LIFESPAN": "slow cleanup"}) as (process, address):
        cells = asyncio.run(work(process, address, notes))
    noted = [note for note in notes.all() if note.startswith(("lifespan", "slow cleanup"))]
    left = ["lifespan entered", "lifespan left", "slow cleanup done"]
    return {**cells, "The server's lifespan is entered once and left, with its cleanup": yes(noted == left)}


async def work(process: Process, address: str, notes: Notes) -> Cells:
    async with Clients(address) as clients:
        older, modern, plain = await clients.session(), await clients.modern(), await clients.connect()
        told = [
            text_of((await older.request("POST", "/mcp", call(1, "echo", text="older"))).messages[-1]),
            text_of((await ask(modern, call(1, "echo", modern=True, text="modern"))).messages[-1]),
            (await plain.request("GET", "/quick/")).body.decode(),
        ]
        cells = {
            "MCP next to Django, for clients up to 2025-11-25 and of 2026-07-28": yes(
                told == ["older", "modern", "quick"]
            ),
            "The headers of a stream are sent at once": yes(await headers_come_at_once(clients, older)),
            "The first message of an answer arrives while the tool still works": yes(
                await an_event_comes_before_the_end(clients)
            ),
            "A client of 2026-07-28 that leaves cancels its call": yes(await leaving_cancels(clients, notes)),
            "If another application raises an exception or sends no response, the client gets 500": yes(
                await soon(statuses(clients, "/broken/", "/silent/")) == [500, 500]
            ),
            "A response that breaks off does not look complete": yes(
                await soon(breaks_off(clients, "/broken-stream/")) is True
            ),
        }
        return {**cells, **await be_stopped(clients, process, notes)}


async def soon(what: Awaitable[Any]) -> Any:
    """None for what does not come."""
    with suppress(TimeoutError):
        return await asyncio.wait_for(what, SOON)
    return None


async def ask(connection: Connection, message: dict[str, Any]) -> Any:
    return await connection.request("POST", "/mcp", message, **routing(message))


async def headers_come_at_once(clients: Clients, session: Connection) -> bool:
    """Of a stream that has nothing to say yet, and of an answer whose tool sleeps."""
    standing, working = await clients.another(session), await clients.another(session)
    standing.send("GET", "/mcp")
    working.send("POST", "/mcp", call(2, "slow", seconds=60, name="silent at first"))
    heads = [await soon(connection.head()) for connection in (standing, working)]
    standing.reset()
    working.reset()
    return [head and head.headers["content-type"].split(";")[0] for head in heads] == ["text/event-stream"] * 2


async def an_event_comes_before_the_end(clients: Clients) -> bool:
    counting = await clients.modern()
    message = call(1, "count", modern=True, to=2, pause=60)
    message["params"]["_meta"] = {**MODERN_META, "progressToken": 1}
    counting.send("POST", "/mcp", message, **routing(message))

    async def first() -> Any:
        return await anext(counting.events(await counting.head()))

    event = await soon(first())
    counting.reset()
    return event is not None and event["params"]["progress"] == 1


async def leaving_cancels(clients: Clients, notes: Notes) -> bool:
    leaving = await clients.modern()
    message = call(1, "slow", modern=True, seconds=60, name="left alone")
    leaving.send("POST", "/mcp", message, **routing(message))
    await asyncio.to_thread(notes.wait_for, "left alone started")
    leaving.reset()
    return await noted(notes, "left alone cancelled", SOON)


async def noted(notes: Notes, note: str, timeout: float) -> bool:
    with suppress(AssertionError):
        await asyncio.to_thread(notes.wait_for, note, 1, timeout)
    return note in notes.all()


async def statuses(clients: Clients, *paths: str) -> list[int]:
    return [(await (await clients.connect()).request("GET", path)).status for path in paths]


async def breaks_off(clients: Clients, path: str) -> bool:
    with suppress(asyncio.IncompleteReadError, ConnectionResetError):
        await (await clients.connect()).request("GET", path)
        return False
    return True


async def be_stopped(clients: Clients, process: Process, notes: Notes) -> Cells:
    """SIGTERM, with calls, a view and streams in flight."""
    older, modern, view = await clients.session(), await clients.modern(), await clients.connect()
    standing, listening = await clients.another(older), await clients.modern()
    standing.send("GET", "/mcp")
    listening.send("POST", "/mcp", listen(), **routing(listen()))
    streams = [(connection, await connection.head()) for connection in (standing, listening)]
    older.send("POST", "/mcp", call(3, "slow", seconds=1, name="call"))
    message = call(1, "slow", modern=True, seconds=1, name="call")
    modern.send("POST", "/mcp", message, **routing(message))
    view.send("GET", "/slow-async/?seconds=2.5")  # Daphne is gone by then
    await asyncio.to_thread(notes.wait_for, "call started", 2)
    await asyncio.to_thread(notes.wait_for, "async view started")
    process.signal(signal.SIGTERM)

    async def rest_of(stream: tuple[Connection, Any]) -> bytes:
        connection, head = stream
        return b"".join([chunk async for chunk in connection.chunks(head)])

    called, (viewed,), ends = await asyncio.gather(
        outcomes(connection.answer() for connection in (older, modern)),
        outcomes([view.answer()]),
        outcomes(map(rest_of, streams)),
    )
    answered = time.monotonic()
    status = await asyncio.to_thread(process.wait)
    took = time.monotonic() - answered
    return {
        "SIGTERM: calls in flight are answered": yes(["call finished" in str(each) for each in called] == [True] * 2),
        "SIGTERM: Django's views in flight are answered": yes("slow async view finished" in str(viewed)),
        "SIGTERM: standing streams end as their protocol says": yes(
            ends[0] == b"" and '"result"' in str(ends[1])  # there, an end that is cut off has no result
        ),
        "SIGTERM: the process ends within ten seconds after the last answer": yes(took < NOT_HELD_UP),
        "SIGTERM: exit status": str(status) if status >= 0 else f"{128 - status}",
    }


async def outcomes(what: Iterable[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*(asyncio.wait_for(each, 15) for each in what), return_exceptions=True)


# What it does with clients that do not read, and calls that do not end


def watch_it_stop(server: str, path: Path) -> Cells:
    notes = Notes(path)
    setting = {
        "SERVER": "tests.project.mcp.server",
        "HTTP_SERVER": "tests.project.serving.build_daphne",
        "SHUTDOWN_TIMEOUT": 1,
    }
    options = options_in(TABLE[ENDS_UNREAD][server])
    env = {**notes.env, "TEST_MCP_SERVING": json.dumps(setting)}
    with serving(server, "tests.project.asgi", *options, env=env) as (process, address):
        return asyncio.run(stop(process, address, notes))


ENDS_UNREAD = "SIGTERM: the process ends although a client does not read"


async def stop(process: Process, address: str, notes: Notes) -> Cells:
    async with Clients(address) as clients:
        await assert_others_are_served(clients, times=1)
        cells = {
            "A client that does not read does not fill the memory: MCP": yes(
                await stays_small(clients, process, notes, "2025-11-25", "2026-07-28")
            ),
            "A client that does not read does not fill the memory: Django's views": yes(
                await stays_small(clients, process, notes, "view", leave=False)
            ),
        }
        endless = await clients.modern()
        message = call(1, "slow", modern=True, seconds=60)
        endless.send("POST", "/mcp", message, **routing(message))
        await asyncio.to_thread(notes.wait_for, "slow started")
        process.signal(signal.SIGTERM)
        [answer] = await outcomes([endless.answer()])
        cells[
            "SIGTERM: a call that takes longer than `SHUTDOWN_TIMEOUT` is cancelled, and its client gets an error"
        ] = yes("the call was cancelled" in str(answer))
        with suppress(AssertionError):
            await asyncio.to_thread(process.wait, 6)
        cells[ENDS_UNREAD] = yes(process.popen.poll() is not None)
        return cells


async def stays_small(clients: Clients, process: Process, notes: Notes, *hows: str, leave: bool = True) -> bool:
    before = peak_memory(process)
    unread = [await flooding(clients, how) for how in hows]
    for connection in unread:
        await connection.head()
    # A server that takes everything has taken it by then.
    await noted(notes, "flood view finally" if "view" in hows else "flood finished", SOON)
    await assert_others_are_served(clients, times=3)
    grown = peak_memory(process) - before
    for connection in unread if leave else ():
        connection.reset()
    return grown < LITTLE
