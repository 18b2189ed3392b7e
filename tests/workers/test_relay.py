"""Relayed requests: their user and context, their limits, and how they end; see also test_workers.py."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx2
import pytest

from tests.sessions.test_calls import end_during_a_call
from tests.support import in_django
from tests.support.access_servers import bearer, logged_in
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, Notes, call, text_of
from tests.support.http_client import Answer, Clients, Connection
from tests.support.private_redis import Redis
from tests.support.raw_http import headers_of
from tests.support.workers import Worker, started

pytestmark = pytest.mark.process

Workers = list[Worker]


@pytest.fixture(params=["runmcp", "uvicorn"])
def workers(request: pytest.FixtureRequest, redis: Redis) -> Iterator[Workers]:
    with started(request.param, 2, redis, "tests.project.asgi") as workers:
        yield workers


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, redis: Redis, users: None) -> Iterator[Workers]:
    """Two workers, whose handlers accept different users."""
    notes = Notes(tmp_path_factory.mktemp("relay") / "notes")
    env = {**in_django.ENVIRONMENT, "TEST_DEBUG": "0", **notes.env}
    with started("uvicorn", 2, redis, "tests.project.access_asgi", env=env) as workers:
        yield workers


async def elsewhere(session: Connection, clients: Clients) -> Connection:
    """A further connection of the same client in the same session, to another worker."""
    return await clients.connect(**{name: value for name, value in session.headers.items() if name != "Host"})


def test_a_body_that_is_too_large_is_refused_by_the_relaying_worker(workers: Workers) -> None:
    async def work() -> None:
        async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
            here = await elsewhere(await owner.session(), other)
            refused = await here.request("POST", "/mcp", call(1, "echo", text="x" * 5_000_000))
            assert refused.status == 413
            here = await elsewhere(here, other)
            echoed = await here.request("POST", "/mcp", call(2, "echo", text="x" * 4_000_000))
            assert len(text_of(echoed.messages[0])) == 4_000_000

    anyio.run(work)


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
def test_a_relayed_call_runs_for_its_user_and_other_users_get_404(
    path: str,
    owner: Callable[[], dict[str, str]],
    other: Callable[[], dict[str, str]],
    told: str,
    site: Workers,
) -> None:
    mine, theirs = owner(), other()
    home, away = (f"{worker.address}{path}" for worker in site)
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


def test_a_relayed_call_has_the_context_of_its_request(redis: Redis) -> None:
    """The middleware of the mount runs in both workers. Of an outer one, plain entries and the language arrive."""

    def seen(address: str, path: str, session: str) -> dict[str, Any]:
        message = call(1, "tenant")
        answer = httpx2.post(address + path, json=message, headers={**headers_of(message, session), **acme})
        found: dict[str, Any] = json.loads(text_of(json.loads(answer.text.partition("data: ")[2])))
        return found

    acme = {"X-Tenant": "acme"}
    carried = {
        "plain": {"seats": [1, 2.5, None, "ü"]},
        "url": {"url_tenant": "acme"},
        "language": "de",
        "time zone": "Asia/Tokyo",
    }
    with started("uvicorn", 2, redis, "tests.project.tenants_asgi") as workers:
        home, away = (worker.address for worker in workers)
        for place in ("inside", "outside"):
            path = f"/acme/{place}/mcp"
            opening = httpx2.post(home + path, json=INITIALIZE, headers={**headers_of(INITIALIZE), **acme})
            session = opening.headers["mcp-session-id"]
            local, relayed = seen(home, path, session), seen(away, path, session)
            assert local == {"object": "acme", "context": "acme", **carried}
            if place == "inside":
                assert relayed == local
            else:
                assert relayed == {"object": None, "context": "the default tenant", **carried}
                seen(away, path, session)
        assert workers[0].process.errors.count("A relayed request lacks the scope entries 'tenant'") == 1
        assert "lacks" not in workers[1].process.errors


def test_a_session_of_one_mount_is_unknown_to_another_mount(site: Workers) -> None:
    home, away = (worker.address for worker in site)
    session = httpx2.post(f"{home}/public", json=INITIALIZE, headers=headers_of(INITIALIZE)).headers["mcp-session-id"]
    message = call(1, "who")
    answers = [
        httpx2.post(f"{away}/{path}", json=message, headers=headers_of(message, session)) for path in ("public", "json")
    ]
    assert [answer.status_code for answer in answers] == [200, 404]


@pytest.mark.parametrize("path", ["/mcp", "/other"])
def test_a_relayed_call_is_answered_when_its_session_is_ended_at_the_same_time(path: str, workers: Workers) -> None:
    async def work() -> None:
        found = set()
        for number in range(200):
            if number >= 20 and found & {"404", "error"}:  # on a fast machine, few rounds end a call
                break
            async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
                pause = random.choice((0, 0.001, 0.003, 0.01))
                message = call(7, "slow", seconds=0.2 * (number % 2))
                found.add(await end_during_a_call(path, other, owner, message, pause))
        assert found & {"404", "error"}

    anyio.run(work)
    for worker in workers:
        assert "Traceback" not in worker.process.errors


@pytest.mark.parametrize("json_response", [False, True])
def test_a_relayed_call_that_outlasts_the_deadline_of_its_worker_gets_an_error(
    json_response: bool, redis: Redis, notes: Notes
) -> None:
    async def work(workers: Workers) -> None:
        async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
            relayed = await elsewhere(await owner.session(), other)
            relayed.send("POST", "/mcp", call(7, "slow", seconds=30, name="too long"))
            await asyncio.to_thread(notes.wait_for, "too long started")
            workers[1].process.signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE):
                answer = await relayed.answer()
            (message,) = answer.messages
            assert (answer.status, message["id"], message["error"]["code"]) == (200, 7, -32000)
            assert "shutting down" in message["error"]["message"]

    with started("runmcp", 2, redis, "tests.project.asgi", env=briefly(notes, 1, json_response)) as workers:
        anyio.run(work, workers)
        assert workers[1].process.wait() == 1
        assert "tools/call 'slow'" in workers[1].process.errors
        assert "Traceback" not in workers[1].process.errors


def briefly(notes: Notes, seconds: float, json_response: bool = False) -> dict[str, str]:
    """The environment of a worker whose shutdown takes so long at the most."""
    configuration = {
        "SERVER": "tests.project.mcp.server",
        "HTTP_SERVER": "tests.project.serving.build_daphne",
        "SHUTDOWN_TIMEOUT": seconds,
    }
    handler = {"json_response": json_response}
    return {**notes.env, "TEST_MCP_SERVING": json.dumps(configuration), "TEST_HANDLER": json.dumps(handler)}


def test_while_both_workers_shut_down_a_relayed_question_is_answered_on_a_new_connection(
    redis: Redis, notes: Notes
) -> None:
    async def work(workers: Workers) -> None:
        async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
            session = await owner.session(elicitation=True)
            asking = await elsewhere(session, other)
            params = {"_meta": {"progressToken": "steps"}, "name": "ask_slowly", "arguments": {}}
            asking.send("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            events = asking.events(await asking.head())
            assert (await anext(events))["params"]["message"] == "before"
            for worker in workers:
                worker.process.signal(signal.SIGTERM)
                await asyncio.to_thread(worker.process.wait_for, "Shutting down: received SIGTERM")
            question = await anext(events)
            assert question["method"] == "elicitation/create"
            answering = await elsewhere(session, other)
            result = {"action": "accept", "content": {"word": "yes"}}
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
            assert (await answering.request("POST", "/mcp", answer)).status == 202
            assert (await anext(events))["params"]["message"] == "after"
            assert text_of(await anext(events)) == "yes"

    with started("runmcp", 2, redis, "tests.project.asgi", env=briefly(notes, 20)) as workers:
        anyio.run(work, workers)
        assert [worker.process.wait() for worker in workers] == [0, 0]


def test_a_stream_ends_cleanly_with_its_relaying_worker_and_can_be_opened_again(workers: Workers) -> None:
    async def work() -> None:
        async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
            session = await owner.session()
            stream, head = await streaming(session, other)
            assert (await session.request("GET", "/mcp")).status == 409
            workers[1].process.signal(signal.SIGTERM)
            async for _ in stream.chunks(head):
                pass
            await opened_anew(session, owner)

    anyio.run(work)


def test_the_clients_of_a_killed_relaying_worker_are_noticed_to_have_left(workers: Workers) -> None:
    async def work() -> None:
        async with Clients(workers[0].address) as owner, Clients(workers[1].address) as other:
            session = await owner.session()
            await streaming(session, other)
            assert (await session.request("GET", "/mcp")).status == 409
            workers[1].process.popen.kill()
            await opened_anew(session, owner)

    anyio.run(work)


async def streaming(session: Connection, clients: Clients) -> tuple[Connection, Answer]:
    """A connection with the session's stream, and the head of that."""
    stream = await elsewhere(session, clients)
    stream.send("GET", "/mcp")
    return stream, await stream.head()


async def opened_anew(session: Connection, clients: Clients) -> None:
    """Wait until the session can open its stream again. A session has one stream at a time."""
    async with asyncio.timeout(DEADLINE):
        while True:
            again = await clients.another(session)
            again.send("GET", "/mcp")
            if (await again.head()).status == 200:
                return
            await asyncio.sleep(0.1)
