"""A session lives in one worker, and any other one of the project answers its requests all the same."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import httpx2
import pytest

from tests import in_django
from tests.asgi_servers import serving
from tests.doors import bearer, logged_in
from tests.harness import DEADLINE, INITIALIZE, INITIALIZED, Events, Process, call, text_of
from tests.http_client import Answer, Clients, Connection
from tests.private_redis import Redis
from tests.raw_http import headers_of

SERVERS = ["runmcp", "daphne", "uvicorn"]

pytestmark = pytest.mark.timeout(90)


@dataclass
class Workers:
    """Two workers of one project, each at an address of its own."""

    processes: list[Process] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def add(self, server: str, stack: ExitStack, env: dict[str, str], module: str = "tests.project.asgi") -> None:
        process, address = stack.enter_context(serving(server, module, env=env))
        self.processes.append(process)
        self.addresses.append(address)


@pytest.fixture(params=SERVERS)
def workers(request: pytest.FixtureRequest, redis: Redis, events: Events) -> Iterator[Workers]:
    with ExitStack() as stack:
        workers = Workers()
        for _ in range(2):
            workers.add(request.param, stack, redis.layers() | events.env)
        yield workers


@pytest.fixture
def uvicorns(redis: Redis, events: Events) -> Iterator[Workers]:
    with ExitStack() as stack:
        workers = Workers()
        for _ in range(2):
            workers.add("uvicorn", stack, redis.layers() | events.env)
        yield workers


async def elsewhere(session: Connection, clients: Clients) -> Connection:
    """A further connection of the same client in the same session, to another worker."""
    return await clients.connect(**{name: value for name, value in session.headers.items() if name != "Host"})


def test_each_request_of_a_session_may_go_to_any_worker(workers: Workers) -> None:
    async def work() -> None:
        async with Clients(workers.addresses[0]) as owner, Clients(workers.addresses[1]) as other:
            session = await owner.session(elicitation=True)
            here = await elsewhere(session, other)
            echoed = await here.request("POST", "/mcp", call(1, "echo", text="relayed"))
            assert [text_of(message) for message in echoed.messages] == ["relayed"]
            assert echoed.headers["mcp-session-id"] == session.headers["Mcp-Session-Id"]
            counting = call(2, "count", to=3)
            counting["params"]["_meta"] = {"progressToken": "p"}
            *progress, result = (await here.request("POST", "/mcp", counting)).messages
            assert [message["params"]["progress"] for message in progress] == [1, 2, 3]
            assert text_of(result) == "3"
            stream = await elsewhere(session, other)
            stream.send("GET", "/mcp")
            assert (await stream.head()).status == 200
            again = await session.request("GET", "/mcp")
            assert again.status == 409, "the owner knows that the session has its stream"
            ended = await here.request("DELETE", "/mcp")
            assert ended.status == 200
            for connection in (here, session):
                assert (await connection.request("POST", "/mcp", call(3, "echo", text="x"))).status == 404

    anyio.run(work)
    for process in workers.processes:
        assert "Traceback" not in process.errors


def test_a_question_and_its_answer_go_through_different_workers(uvicorns: Workers) -> None:
    async def work() -> None:
        async with Clients(uvicorns.addresses[0]) as owner, Clients(uvicorns.addresses[1]) as other:
            session = await owner.session(elicitation=True)
            asking = await elsewhere(session, other)
            asking.send("POST", "/mcp", call(1, "ask"))
            events = asking.events(await asking.head())
            question = await anext(events)
            assert question["method"] == "elicitation/create"
            answer = {
                "jsonrpc": "2.0",
                "id": question["id"],
                "result": {"action": "accept", "content": {"word": "yes"}},
            }
            assert (await session.request("POST", "/mcp", answer)).status == 202
            assert text_of(await anext(events)) == "yes"

    anyio.run(work)


def test_bodies_of_megabytes_pass_both_ways_and_what_is_too_large_is_refused_where_it_arrives(
    uvicorns: Workers,
) -> None:
    async def work() -> None:
        async with Clients(uvicorns.addresses[0]) as owner, Clients(uvicorns.addresses[1]) as other:
            session = await owner.session()
            here = await elsewhere(session, other)
            text = "ä€😀" * 100_000
            echoed = await here.request("POST", "/mcp", call(1, "echo", text=text))
            assert text_of(echoed.messages[0]) == text
            refused = await here.request("POST", "/mcp", call(2, "echo", text="x" * 5_000_000))
            assert refused.status == 413

    anyio.run(work)


def test_a_call_whose_client_leaves_goes_on_and_its_result_is_resumed_through_another_worker(
    redis: Redis, events: Events, users: None
) -> None:
    with ExitStack() as stack:
        workers = Workers()
        for _ in range(2):
            workers.add("uvicorn", stack, doors_env(redis, events), "tests.project.doors_asgi")

        async def work() -> None:
            async with Clients(workers.addresses[0]) as owner, Clients(workers.addresses[1]) as other:
                session = await owner.connect()
                await owner.initialize(session, "/public")
                here = await elsewhere(session, other)
                here.send("POST", "/public", {**call(1, "slow"), "params": slow_with_progress})
                head = await here.head()
                last = ""
                async for chunk in here.chunks(head):
                    ids = [line[4:] for line in chunk.decode().splitlines() if line.startswith("id: ")]
                    last = ids[-1].strip() if ids else last
                    if b"notifications/progress" in chunk:
                        break
                here.reset()
                await anyio.to_thread.run_sync(events.wait_for, "slow")
                with events.path.open("a") as notes:
                    notes.write("go\n")
                again = await elsewhere(session, other)
                again.send("GET", "/public", Last_Event_ID=last)
                async with asyncio.timeout(DEADLINE):
                    async for message in again.events(await again.head()):
                        if message.get("id") == 1:
                            assert text_of(message) == "for AnonymousUser"
                            return

        slow_with_progress = {"name": "slow", "arguments": {}, "_meta": {"progressToken": "p"}}
        anyio.run(work)


def doors_env(redis: Redis, events: Events) -> dict[str, str]:
    return {**in_django.ENVIRONMENT, "TEST_DEBUG": "0", **redis.layers(), **events.env}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, redis: Redis, users: None) -> Iterator[Workers]:
    """Two workers with handlers of which each lets in others."""
    events = Events(tmp_path_factory.mktemp("relay") / "events")
    with ExitStack() as stack:
        workers = Workers()
        for _ in range(2):
            workers.add("uvicorn", stack, doors_env(redis, events), "tests.project.doors_asgi")
        yield workers


CALLERS = {
    "a logged-in user": ("/public", lambda: logged_in("ann"), lambda: logged_in("bob"), "ann, in the scope ann"),
    "a user by token": ("/token", lambda: bearer("ann-token"), lambda: bearer("bob-token"), "ann, in the scope ann"),
    "a token": (
        "/userless",
        lambda: bearer("ann-token"),
        lambda: bearer("bob-token"),
        "AnonymousUser, in the scope <mcp.server.auth.middleware.bearer_auth.AuthenticatedUser object",
    ),
    "nobody": ("/public", dict, lambda: logged_in("ann"), "AnonymousUser, in the scope AnonymousUser"),
}


@pytest.mark.parametrize(("path", "owner", "other", "told"), CALLERS.values(), ids=CALLERS)
def test_a_relayed_call_is_its_callers_and_nobody_elses_session_is_found(
    path: str, owner: object, other: object, told: str, doors: Workers
) -> None:
    assert callable(owner)
    assert callable(other)
    mine, theirs = owner(), other()
    home, away = (f"{address}{path}" for address in doors.addresses)
    opening = httpx2.post(home, json=INITIALIZE, headers={**headers_of(INITIALIZE), **mine})
    session = opening.headers["mcp-session-id"]
    httpx2.post(away, json=INITIALIZED, headers={**headers_of(INITIALIZED, session), **mine})
    message = call(1, "who")
    answers = [httpx2.post(url, json=message, headers={**headers_of(message, session), **mine}) for url in (home, away)]
    assert [told in answer.text for answer in answers] == [True, True], answers[1].text
    unknown = httpx2.post(away, json=message, headers={**headers_of(message, "unknown"), **theirs})
    for name in (session, session[:-1], session.replace("specific", "specifik")):
        foreign = httpx2.post(away, json=message, headers={**headers_of(message, name), **theirs})
        assert (foreign.status_code, foreign.content) == (404, unknown.content)


def test_another_mount_does_not_serve_a_session_of_this_one(doors: Workers) -> None:
    home, away = doors.addresses
    session = httpx2.post(f"{home}/public", json=INITIALIZE, headers=headers_of(INITIALIZE)).headers["mcp-session-id"]
    message = call(1, "who")
    answers = [
        httpx2.post(f"{away}/{path}", json=message, headers=headers_of(message, session)) for path in ("public", "json")
    ]
    assert [answer.status_code for answer in answers] == [200, 404]


def test_of_a_killed_worker_only_the_own_sessions_are_lost_and_each_is_404(uvicorns: Workers) -> None:
    async def work() -> None:
        async with Clients(uvicorns.addresses[0]) as first, Clients(uvicorns.addresses[1]) as second:
            lost, kept = await first.session(), await second.session()
            here = await elsewhere(lost, second)
            running = await elsewhere(lost, second)
            running.send("POST", "/mcp", call(1, "slow", seconds=60))
            assert (await running.head()).status == 200
            uvicorns.processes[0].popen.kill()
            started = time.monotonic()
            answer = await here.request("POST", "/mcp", call(2, "echo", text="x"))
            assert answer.status == 404
            assert time.monotonic() - started < 10
            started = time.monotonic()
            assert (await here.request("POST", "/mcp", call(3, "echo", text="x"))).status == 404
            assert time.monotonic() - started < 1
            async with asyncio.timeout(10):
                await running.ended()
            kept = await second.another(kept)  # uvicorn has closed the idle connection
            assert (await kept.request("POST", "/mcp", call(4, "echo", text="x"))).status == 200

    anyio.run(work)
    assert "Traceback" not in uvicorns.processes[1].errors


@pytest.mark.parametrize("workers", ["runmcp", "uvicorn"], indirect=True)  # the command daphne lets nobody drain
def test_a_worker_that_is_stopped_answers_relayed_calls_in_flight_and_then_its_sessions_are_404_at_once(
    workers: Workers, events: Events
) -> None:
    async def work() -> None:
        async with Clients(workers.addresses[0]) as owner, Clients(workers.addresses[1]) as other:
            session = await owner.session()
            here = await elsewhere(session, other)
            here.send("POST", "/mcp", call(1, "slow", seconds=1.5))
            await anyio.to_thread.run_sync(events.wait_for, "slow started")
            process = workers.processes[0]
            session.reset()
            process.popen.send_signal(signal.SIGTERM)
            answer = await here.answer()
            assert text_of(answer.messages[0]) == "slow finished"
            await anyio.to_thread.run_sync(process.popen.wait, DEADLINE)
            started = time.monotonic()
            assert (await here.request("POST", "/mcp", call(2, "echo", text="x"))).status == 404
            assert time.monotonic() - started < 1

    anyio.run(work)


def test_while_redis_is_away_local_sessions_go_on_and_relayed_requests_are_503_until_it_is_back(
    redis_of_its_own: Redis, events: Events
) -> None:
    with ExitStack() as stack:
        workers = Workers()
        for _ in range(2):
            workers.add("uvicorn", stack, redis_of_its_own.layers() | events.env)

        async def work() -> None:
            async with Clients(workers.addresses[0]) as owner, Clients(workers.addresses[1]) as other:
                session = await owner.session()
                here = await elsewhere(session, other)

                async def relayed() -> Answer:
                    async with asyncio.timeout(5):
                        return await here.request("POST", "/mcp", call(1, "echo", text="x"))

                assert (await relayed()).status == 200
                redis_of_its_own.stop()
                away = await relayed()
                assert (away.status, away.headers["retry-after"]) == (503, "1")
                assert (await session.request("POST", "/mcp", call(2, "echo", text="x"))).status == 200
                another = await other.session()
                assert (await another.request("POST", "/mcp", call(3, "echo", text="x"))).status == 200
                redis_of_its_own.start()
                async with asyncio.timeout(DEADLINE):
                    while (await relayed()).status != 200:  # noqa: ASYNC110 - nobody tells a client
                        await asyncio.sleep(0.1)
                assert (await (await elsewhere(another, owner)).request("POST", "/mcp", call(4, "state"))).status == 200

        anyio.run(work)
        for process in workers.processes:
            lines = [line for line in process.errors.splitlines() if "channel layer" in line]
            assert ["cannot be used" in line for line in lines] == [True, False], lines


def test_when_the_worker_that_relays_is_killed_the_owner_takes_its_clients_for_gone(uvicorns: Workers) -> None:
    async def work() -> None:
        async with Clients(uvicorns.addresses[0]) as owner, Clients(uvicorns.addresses[1]) as other:
            session = await owner.session()
            stream = await elsewhere(session, other)
            stream.send("GET", "/mcp")
            assert (await stream.head()).status == 200
            assert (await session.request("GET", "/mcp")).status == 409
            uvicorns.processes[1].popen.kill()
            async with asyncio.timeout(DEADLINE):
                while True:
                    again = await owner.another(session)
                    again.send("GET", "/mcp")
                    if (await again.head()).status == 200:
                        return
                    await asyncio.sleep(0.1)

    anyio.run(work)
