"""The calls of a session: their ids are unique while they are in progress, and each is answered when it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.harness import DEADLINE, Notes, Process, call, text_of
from tests.support.http_client import Answer, Clients, Connection

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("users")]

PATHS = ["/mcp", "/json", "/resumable"]
ROUNDS = 40


class Server:
    def __init__(self, process: Process, address: str, notes: Notes) -> None:
        self.process = process
        self.address = address
        self.notes = notes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, users: None) -> Iterator[Server]:
    notes = Notes(tmp_path_factory.mktemp("calls") / "notes")
    with serving("uvicorn", "tests.project.workers_asgi", env={**in_django.ENVIRONMENT, **notes.env}) as served:
        yield Server(*served, notes)
        assert "Traceback" not in served[0].errors
        assert "Error" not in served[0].errors


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        with anyio.fail_after(2 * DEADLINE):
            await work()

    anyio.run(within)


def named(request_id: int | str, name: str, seconds: float = 0.0) -> dict[str, Any]:
    """A call that is noted under this name when it runs."""
    return {**call(1, "process", name=name, seconds=seconds), "id": request_id}


def assert_refused(answer: Answer, request_id: int | str) -> None:
    (message,) = answer.messages
    assert (answer.status, message["id"], message["error"]["code"]) == (409, request_id, -32600)
    assert "A request with this id is in progress" in message["error"]["message"]


async def noted(server: Server, note: str) -> None:
    await anyio.to_thread.run_sync(server.notes.wait_for, note)


@pytest.mark.parametrize("path", PATHS)
def test_a_request_is_refused_while_one_with_the_same_id_is_in_progress(path: str, server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            one = await clients.session(path)
            two = await clients.another(one)
            other_session = await clients.session(path)
            name = f"first at {path}"
            one.send("POST", path, named(7, name, seconds=0.5))
            await noted(server, f"{name} ran")
            for request_id in (7, "7"):
                assert_refused(await two.request("POST", path, named(request_id, "never")), request_id)
            for connection, request_id in ((two, 8), (other_session, 7)):
                (message,) = (await connection.request("POST", path, named(request_id, "beside it"))).messages
                assert message["id"] == request_id
            (message,) = (await one.answer()).messages
            assert (message["id"], "result" in message) == (7, True)
            for _ in range(3):
                (message,) = (await one.request("POST", path, named(7, "again"))).messages
                assert (message["id"], "result" in message) == (7, True)
        assert "never ran" not in server.notes.all()

    run(work)


@pytest.mark.parametrize("path", ["/mcp", "/resumable"])
def test_a_call_whose_client_has_left_has_its_id_until_it_ends(path: str, server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            leaving = await clients.session(path)
            staying = await clients.another(leaving)
            name = f"left at {path}"
            leaving.send("POST", path, named("x", name, seconds=0.5))
            await leaving.head()
            await noted(server, f"{name} ran")
            leaving.reset()
            assert_refused(await staying.request("POST", path, named("x", "never")), "x")
            for number in range(100):
                answer = await staying.request("POST", path, named("x", f"{number} after {name}"))
                if answer.status == 200:
                    break
                await asyncio.sleep(0.1)
            assert "result" in answer.messages[-1]

    run(work)


def test_the_id_of_the_sdks_own_stream_is_refused(server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            session = await clients.session()
            assert_refused(await session.request("POST", "/mcp", named("_GET_stream", "never")), "_GET_stream")

    run(work)


def outcome(answer: Answer) -> str:
    """How a call ended while its session was being ended; anything else is a failure."""
    if answer.status == 404:
        return "404"
    assert answer.status == 200, answer
    (message,) = answer.messages
    assert message["id"] == 7, answer
    if "result" in message:
        return "result"
    assert message["error"]["code"] == -32000
    assert message["error"]["message"] == "The session has ended; the call was cancelled."
    return "error"


async def end_during_a_call(path: str, at: Clients, opening: Clients, message: Any, pause: float) -> str:
    opened = await opening.session(path)
    calling, ending = [await at.connect(**session_headers(opened)) for _ in range(2)]
    calling.send("POST", path, message)
    await asyncio.sleep(pause)
    ended, answer = await asyncio.gather(ending.request("DELETE", path), calling.answer())
    assert ended.status == 200
    gone = await calling.request("POST", path, named(8, "never"))
    assert gone.status == 404
    return outcome(answer)


def session_headers(connection: Connection) -> dict[str, str]:
    return {name: value for name, value in connection.headers.items() if name.startswith("Mcp-")}


@pytest.mark.parametrize("path", PATHS)
def test_a_call_is_answered_when_its_session_is_ended_at_the_same_time(path: str, server: Server) -> None:
    async def work() -> None:
        found = set()
        for number in range(ROUNDS):
            async with Clients(server.address) as clients:
                message = named(7, f"ended {number}", seconds=0.2 * (number % 2))
                pause = random.choice((0, 0.001, 0.003, 0.01))
                found.add(await end_during_a_call(path, clients, clients, message, pause))
        assert found & {"404", "error"}

    run(work)


def test_two_clients_that_end_a_session_at_once_are_both_answered(server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            for _ in range(10):
                session = await clients.session()
                another = await clients.another(session)
                answers = await asyncio.gather(
                    *(connection.request("DELETE", "/mcp") for connection in (session, another))
                )
                assert sorted(answer.status for answer in answers) in ([200, 200], [200, 404])

    run(work)


def test_a_half_received_request_does_not_delay_the_end_of_its_session(server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            session = await clients.session()
            slow = await clients.another(session)
            head = "".join(f"{name}: {value}\r\n" for name, value in slow.headers.items())
            slow.writer.write(f"POST /mcp HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n{{".encode())
            await slow.writer.drain()
            with anyio.fail_after(1.5):
                assert (await session.request("DELETE", "/mcp")).status == 200

    run(work)


def test_the_result_of_a_call_in_the_session_is_its_own(server: Server) -> None:
    async def work() -> None:
        async with Clients(server.address) as clients:
            session = await clients.session()
            answer = await session.request("POST", "/mcp", call(1, "echo", text="mine"))
            assert text_of(answer.messages[0]) == "mine"

    run(work)
