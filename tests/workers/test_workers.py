"""Sessions in several workers without sticky routing: any worker gets any request, and all share one Redis."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import CreateMessageRequestParams, CreateMessageResult, TextContent

from tests.support import in_django
from tests.support.daphne_limits import LITTLE, resident_memory
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, Notes, call, text_of, wait_until
from tests.support.http_client import Answer, Clients, Connection
from tests.support.nginx import needs_nginx
from tests.support.private_redis import Redis
from tests.support.raw_http import ACCEPT, Request, headers_of, open_session, post
from tests.support.workers import Worker, Workers, several, started
from tests.tools.test_confirmation_processes import MODES, User, answer, ask, cancel, connected

pytestmark = [pytest.mark.process, needs_nginx, pytest.mark.usefixtures("users")]


def environment(redis: Redis, notes: Notes) -> dict[str, str]:
    cache = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis.url}}
    return {**in_django.ENVIRONMENT, **notes.env, "TEST_CACHES": json.dumps(cache)}


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("noted") / "notes")


@pytest.fixture(
    scope="module", params=[("daphne", 2, "core"), ("uvicorn", 4, "pubsub")], ids=["daphne x 2", "uvicorn x 4"]
)
def workers(request: pytest.FixtureRequest, redis: Redis, noted: Notes, users: None) -> Iterator[Workers]:
    server, number, layer = request.param
    with several(server, number, redis, layer=layer, env=environment(redis, noted)) as workers:
        yield workers
        for worker in workers.each:
            assert "Traceback" not in worker.process.errors


def run(work: Callable[[], Awaitable[None]], seconds: float = DEADLINE) -> None:
    async def within() -> None:
        with anyio.fail_after(seconds):
            await work()

    anyio.run(within)


# One request after the other, each to the worker that the test picks


def next_message(request: Request) -> dict[str, Any] | None:
    """The next JSON-RPC message of an event stream, priming events left out; None once it has ended."""
    while not request.response.isclosed():
        if data := request.event().get("data"):
            message: dict[str, Any] = json.loads(data)
            return message
    return None


def message_of(request: Request) -> dict[str, Any]:
    message = next_message(request)
    assert message is not None, "the stream has ended"
    return message


def result_of(request: Request) -> dict[str, Any]:
    """The whole answer's only message."""
    assert request.status == 200, (request.status, request.read())
    message = message_of(request)
    request.leave()
    return message


def respond(address: str, path: str, session: str, to: dict[str, Any], result: dict[str, Any]) -> int:
    """Answer a request of the server's; the status."""
    message = {"jsonrpc": "2.0", "id": to["id"], "result": result}
    headers = headers_of({"method": "", **message}, session)
    request = Request(address, path, "POST", headers, message)
    request.read()
    return request.status


def stream_of(address: str, path: str, session: str, **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    common = {"Accept": "text/event-stream", "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    return Request(address, path, "GET", {**common, **named})


def end(address: str, path: str, session: str) -> int:
    request = Request(address, path, "DELETE", {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"})
    request.read()
    return request.status


def each_way(workers: Workers) -> Iterator[tuple[Worker, Worker]]:
    """An owner and another one, from every side."""
    yield from zip(workers.each, [*workers.each[1:], workers.each[0]], strict=True)


def test_any_worker_answers_a_request_of_any_session(workers: Workers) -> None:
    for owner in workers.each:
        session = open_session(owner.address, "/mcp")
        ran = [text_of(result_of(post(each, "/mcp", call(1, "process"), session))) for each in workers.addresses]
        assert ran == [str(owner.process.pid)] * len(ran)


def test_a_question_of_a_tool_is_answered_through_another_worker(workers: Workers) -> None:
    for owner, other in each_way(workers):
        session = open_session(owner.address, "/mcp")
        asking = post(other.address, "/mcp", call(1, "ask"), session)
        question = message_of(asking)
        assert question["method"] == "elicitation/create"
        further = workers.each[-1] if other is not workers.each[-1] else owner
        said = {"action": "accept", "content": {"word": "through another"}}
        assert respond(further.address, "/mcp", session, question, said) == 202
        assert text_of(result_of(asking)) == "through another"


def test_a_write_tool_asks_and_is_answered_through_different_workers(workers: Workers, noted: Notes) -> None:
    for number, (owner, other) in enumerate(each_way(workers), start=len(noted.all()) + 1):
        session = open_session(owner.address, "/shop")
        asking = post(other.address, "/shop", call(1, "cancel", number=number), session)
        question = message_of(asking)
        assert question["params"]["message"] == f"Cancel order {number}?"
        assert f"cancelled {number}" not in noted.all()
        assert respond(owner.address, "/shop", session, question, {"action": "accept", "content": {}}) == 202
        assert text_of(result_of(asking)) == f"order {number} is cancelled"
        assert noted.all().count(f"cancelled {number}") == 1


def test_an_answer_of_2026_07_28_through_another_worker_counts_once(workers: Workers, noted: Notes) -> None:
    first, second = workers.addresses[0], workers.addresses[-1]
    number = 1000 + len(workers.each)

    async def work() -> None:
        async with (
            connected(f"{first}/shop", "auto", User()) as one,
            connected(f"{second}/shop", "auto", User()) as two,
        ):
            asked = await ask(one, number)
            assert await answer(two, number, asked)
            assert not [again for again in (one, two) if await answer(again, number, asked)]

    run(work)
    assert noted.all().count(f"cancelled {number}") == 1


def test_notifications_and_requests_of_the_server_come_through_another_worker(workers: Workers) -> None:
    for owner, other in each_way(workers):
        session = open_session(owner.address, "/mcp")
        stream = stream_of(other.address, "/mcp", session)
        assert (stream.status, stream.header("content-type")) == (200, "text/event-stream")
        assert stream.seconds < 10, "the headers have to come at once"
        assert text_of(result_of(post(owner.address, "/mcp", call(1, "announce"), session))) == "announced"
        assert message_of(stream)["method"] == "notifications/tools/list_changed"
        # And a request of the server's, whose answer takes another way than the stream.
        completing = post(other.address, "/mcp", call(2, "complete"), session)
        asked = message_of(stream)
        assert asked["method"] == "sampling/createMessage"
        said = {"role": "assistant", "content": {"type": "text", "text": "on and on"}, "model": "none"}
        assert respond(owner.address, "/mcp", session, asked, said) == 202
        assert text_of(result_of(completing)) == "on and on"
        stream.leave()


def test_the_worker_with_the_session_notices_that_a_client_leaves_its_stream_at_another_one(workers: Workers) -> None:
    """The SDK allows one such stream for each session, so that there is room for the next only then."""
    for owner, other in each_way(workers):
        session = open_session(owner.address, "/mcp")
        stream = stream_of(other.address, "/mcp", session)
        taken = stream_of(owner.address, "/mcp", session)
        assert (stream.status, taken.status) == (200, 409)
        taken.leave()
        stream.leave()

        def is_free(session: str = session, owner: Worker = owner) -> bool:
            again = stream_of(owner.address, "/mcp", session)
            again.leave()
            return again.status == 200

        wait_until(is_free, "the owner has noticed that the stream's client has left", 5)


def resumed(address: str, session: str, last_event: str) -> dict[str, Any]:
    """The message after an event. As long as the owner takes the first stream for open, the next one ends at once."""

    def message() -> dict[str, Any] | None:
        stream = stream_of(address, "/resumable", session, Last_Event_ID=last_event)
        assert stream.status == 200
        try:
            return next_message(stream)
        finally:
            stream.leave()

    found: dict[str, Any] = wait_until(message, "a stream has the result")
    return found


def test_a_missed_result_is_resumed_through_another_worker(workers: Workers, noted: Notes) -> None:
    for owner, other in each_way(workers):
        session = open_session(owner.address, "/resumable")
        name = f"missed {owner.address}"
        message = call(1, "process", name=name, seconds=0.5)
        asking = post(other.address, "/resumable", message, session)
        primed = asking.event()
        noted.wait_for(f"{name} ran")
        asking.leave()
        for each in (owner, other):
            assert text_of(resumed(each.address, session, primed["id"])) == str(owner.process.pid)
        assert noted.all().count(f"{name} ran") == 1


def test_a_session_that_is_ended_through_another_worker_has_ended_everywhere(workers: Workers) -> None:
    for owner, other in each_way(workers):
        session = open_session(owner.address, "/mcp")
        stream = stream_of(other.address, "/mcp", session)
        assert end(other.address, "/mcp", session) == 200
        assert stream.read() == b""
        for each in workers.addresses:
            gone = post(each, "/mcp", call(1, "process"), session)
            assert (gone.status, gone.seconds < 5) == (404, True)
            assert b"Session not found" in gone.read()


def test_through_another_worker_the_session_of_another_user_gets_404(workers: Workers) -> None:
    message = call(1, "process")

    def answer_to(address: str, session: str, **headers: str) -> tuple[int, bytes]:
        headers = {**headers_of(message, session), **{name.replace("_", "-"): value for name, value in headers.items()}}
        got = httpx2.post(f"{address}/mcp", json=message, headers=headers, timeout=DEADLINE)
        return got.status_code, got.content

    owner, other = workers.addresses[0], workers.addresses[-1]
    opening = httpx2.post(f"{owner}/mcp", json=INITIALIZE, headers={**headers_of(INITIALIZE), "X-User": "ann"})
    session = opening.headers["mcp-session-id"]
    unknown = answer_to(other, "nonsense", X_User="bob")
    assert unknown[0] == 404
    assert answer_to(other, session, X_User="bob") == answer_to(other, session) == unknown
    assert answer_to(other, session, X_User="ann")[0] == 200


@pytest.mark.parametrize("path", ["/mcp", "/json"])
def test_messages_of_megabytes_pass_through_another_worker_both_ways(workers: Workers, path: str) -> None:
    text = "åß∂ 💡" * 200_000
    for owner, other in each_way(workers):
        session = open_session(owner.address, path)
        for asked in (call(1, "echo", text=text), call(2, "size", text=text)):
            got = httpx2.post(
                other.address + path, json=asked, headers=headers_of(asked, session), timeout=DEADLINE
            ).content
            result = json.loads(got if path == "/json" else got.partition(b"data: {")[2].join((b"{", b"")))
            assert text_of(result) == (text if asked["id"] == 1 else str(len(text)))


# Through the proxy, which changes the worker with every request


@pytest.mark.parametrize("mode", MODES)
def test_the_sdks_client_works_through_the_proxy(workers: Workers, mode: str) -> None:
    user, steps = User(), list[float]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def work() -> None:
        async with connected(f"{workers.proxy}/mcp", mode, user) as client:
            assert (await client.call_tool("count", {"to": 20}, progress_callback=on_progress)).structured_content == {
                "result": 20
            }
            assert (await client.read_resource("test://static")).contents[0].text == "static text"  # type: ignore[union-attr]
            assert len((await client.list_tools()).tools) > 10
            ran = {(await client.call_tool("process", {})).content[0].text for _ in range(8)}  # type: ignore[union-attr]
            assert len(ran) == (1 if mode == "legacy" else len(workers.each))

    run(work)
    assert steps == [float(step) for step in range(1, 21)]


@pytest.mark.parametrize("mode", MODES)
def test_through_the_proxy_a_gated_tool_asks_and_runs_once(workers: Workers, noted: Notes, mode: str) -> None:
    numbers = [2000 + 100 * len(workers.each) + 10 * MODES.index(mode) + each for each in range(6)]
    user = User()

    async def work() -> None:
        async with connected(f"{workers.proxy}/shop", mode, user) as client:
            for number in numbers:
                assert await cancel(client, number) == (True, f"order {number} is cancelled")

    run(work)
    assert user.questions == [f"Cancel order {number}?" for number in numbers]
    assert [note for note in noted.all() if note in {f"cancelled {number}" for number in numbers}] == [
        f"cancelled {number}" for number in numbers
    ]


def test_through_the_proxy_the_clients_model_is_asked(workers: Workers) -> None:
    async def sampled(_: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="on and on"), model="none")

    async def work() -> None:
        async with Client(f"{workers.proxy}/mcp", mode="legacy", sampling_callback=sampled) as client:
            # On the session's stream, which the client opens by itself, some time after it has shaken hands.
            for _ in range(3):
                with anyio.move_on_after(2):
                    assert (await client.call_tool("complete", {})).content[0].text == "on and on"  # type: ignore[union-attr]
                    return
        raise AssertionError("the question has not come")

    run(work)


def test_a_hundred_calls_at_once_in_one_session_each_have_their_own_answer(workers: Workers) -> None:
    async def work() -> None:
        async with connected(f"{workers.proxy}/mcp", "legacy") as client, anyio.create_task_group() as group:

            async def one(number: int) -> None:
                result = await client.call_tool("echo", {"text": f"number {number}"})
                assert result.content[0].text == f"number {number}"  # type: ignore[union-attr]

            for number in range(100):
                group.start_soon(one, number)

    run(work)


SESSIONS = 1_000
AT_ONCE = 16


def test_no_session_of_a_thousand_is_lost_behind_the_proxy(workers: Workers) -> None:
    ran: dict[int, str] = {}
    led_to: Counter[str] = Counter()
    opened: dict[int, str] = {}

    async def open_one(connection: Connection, number: int) -> None:
        answer = await connection.request("POST", "/mcp", INITIALIZE)
        assert answer.status == 200, answer
        opened[number] = answer.headers["mcp-session-id"]
        assert (await asked(connection, number, INITIALIZED)).status == 202

    async def asked(connection: Connection, number: int, message: Any, method: str = "POST") -> Answer:
        named = {"Mcp_Session_Id": opened[number], "Mcp_Protocol_Version": "2025-11-25"}
        answer = await connection.request(method, "/mcp", message, **named)
        led_to[answer.headers["worker"]] += 1
        return answer

    async def use(connection: Connection, number: int) -> None:
        answer = await asked(connection, number, call(1, "process"))
        assert answer.status == 200, (number, answer)
        ran[number] = text_of(answer.messages[-1])

    async def close(connection: Connection, number: int) -> None:
        assert (await asked(connection, number, None, "DELETE")).status == 200

    async def is_gone(connection: Connection, number: int) -> None:
        assert (await asked(connection, number, call(3, "process"))).status == 404

    async def work() -> None:
        async with Clients(workers.proxy) as clients:
            connections = [await clients.connect() for _ in range(AT_ONCE)]

            async def some(step: Callable[[Connection, int], Awaitable[None]], which: Connection, left: Any) -> None:
                for number in left:
                    await step(which, number)

            for step in (open_one, use, close, is_gone):
                left = iter(range(0, SESSIONS, 10 if step is is_gone else 1))
                async with asyncio.TaskGroup() as group:
                    for connection in connections:
                        group.create_task(some(step, connection, left))

    run(work, 60)
    assert len(ran) == SESSIONS
    owned = Counter(ran.values())
    assert set(owned) == {str(worker.process.pid) for worker in workers.each}
    assert min(owned.values()) > SESSIONS / len(workers.each) / 2
    assert len(led_to) == len(workers.each)


# Under load: a worker is killed, a worker is stopped, Redis is unavailable


@dataclass(frozen=True)
class Reply:
    """The reply to one call."""

    name: str
    sent: float
    came: float
    answer: Answer | None
    """None if it was cut off."""

    @property
    def status(self) -> int:
        return self.answer.status if self.answer else 0

    @property
    def is_result(self) -> bool:
        """Whether the tool has answered. A stream that ends without a result has status 200, too."""
        return self.answer is not None and self.status == 200 and b'"result"' in self.answer.body

    def __str__(self) -> str:
        worker = self.answer.headers.get("worker", "") if self.answer else ""
        body = self.answer.body[-200:] if self.answer else b"cut off"
        return f"{self.name}: {self.status} {body!r} {worker} within {self.came - self.sent:.2f} s"


numbers = itertools.count(1)


async def exchange(address: str, message: Any, session: str = "") -> Reply:
    """One request on a connection of its own: nobody's connection is in the way of another."""
    name = message.get("params", {}).get("arguments", {}).get("name", "")
    sent = time.monotonic()
    host, _, port = address.removeprefix("http://").partition(":")
    answer = None
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return Reply(name, sent, time.monotonic(), None)
    connection = Connection(reader, writer, {"Host": f"{host}:{port}", "Accept": ACCEPT})
    named = {"Mcp_Protocol_Version": "2025-11-25", "Mcp_Session_Id": session} if session else {}
    try:
        async with asyncio.timeout(DEADLINE):
            answer = await connection.request("POST", "/mcp", message, **named)
    except TimeoutError:
        raise AssertionError(f"no answer within {DEADLINE} s to {message} at {address}") from None
    except (OSError, asyncio.IncompleteReadError):
        pass  # cut off
    finally:
        connection.reset()
    return Reply(name, sent, time.monotonic(), answer)


def named_call(seconds: float = 0.0) -> dict[str, Any]:
    """A call that is noted under a name of its own when it runs."""
    number = next(numbers)
    return call(number, "process", name=f"call {number}", seconds=seconds)


@dataclass
class Visitor:
    """A client that repeats a call in one session, whatever the reply is."""

    session: str
    owner: Worker
    address: str
    replies: list[Reply] = field(default_factory=list)

    async def visit(self) -> None:
        while True:
            self.replies.append(await exchange(self.address, named_call(), self.session))
            if not self.replies[-1].is_result:
                await asyncio.sleep(0.05)  # as a client would

    def since(self, moment: float) -> list[Reply]:
        """Those that were asked for after it."""
        return [reply for reply in self.replies if reply.sent >= moment]


async def opened_at(worker: Worker) -> str:
    opening = await exchange(worker.address, INITIALIZE)
    assert opening.answer is not None
    session = opening.answer.headers["mcp-session-id"]
    assert (await exchange(worker.address, INITIALIZED, session)).status == 202
    return session


@asynccontextmanager
async def visited(visitors: list[Visitor]) -> Any:
    """While the block runs, all of them go on calling."""
    tasks = [asyncio.create_task(visitor.visit()) for visitor in visitors]
    try:
        await until(lambda: all(len(visitor.replies) >= 3 for visitor in visitors), "everybody has been answered")
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        assert isinstance(end, asyncio.CancelledError), f"a visitor has ended early: {end!r}"


async def until(reached: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)


def assert_none_ran_twice(notes: Notes) -> None:
    twice = [note for note, times in Counter(notes.all()).items() if note.startswith("call ") and times > 1]
    assert not twice, twice


def assert_each_result_ran(visitors: list[Visitor], notes: Notes) -> None:
    ran = set(notes.all())
    answered = [reply.name for visitor in visitors for reply in visitor.replies if reply.is_result]
    assert answered
    assert not [name for name in answered if f"{name} ran" not in ran]


def told(replies: list[Reply]) -> str:
    return "\n".join(map(str, replies))


@pytest.mark.parametrize(("server", "layer"), [("daphne", "core"), ("uvicorn", "pubsub")])
def test_only_the_sessions_of_a_killed_worker_are_lost(server: str, layer: str, redis: Redis, notes: Notes) -> None:
    async def work(workers: Workers) -> None:
        victim, *others = workers.each
        visitors = [
            Visitor(await opened_at(worker), worker, workers.proxy) for worker in workers.each for _ in range(6)
        ]
        lost = [visitor for visitor in visitors if visitor.owner is victim]
        kept = [visitor for visitor in visitors if visitor.owner is not victim]
        standing = await asyncio.to_thread(stream_of, others[0].address, "/mcp", await opened_at(victim))
        assert standing.status == 200
        async with visited(visitors):
            victim.process.popen.kill()
            victim.process.popen.wait()
            killed = time.monotonic()
            await until(lambda: all(len(visitor.since(killed)) >= 10 for visitor in visitors), "everybody is answered")
            fresh = await exchange(workers.proxy, INITIALIZE)
        assert fresh.status == 200, f"no new session: {fresh}"
        await asyncio.wait_for(asyncio.to_thread(standing.read), 5)

        for visitor in lost:
            since = visitor.since(killed)
            assert {reply.status for reply in since} == {404}, told(since)
            assert since[0].came - killed < 5, f"the first is told late: {since[0]}"
            assert max(reply.came - reply.sent for reply in since[1:]) < 2, told(since)
        for visitor in kept:
            assert all(reply.is_result for reply in visitor.since(killed)), told(visitor.since(killed))
            # What was in flight through the worker that was killed is cut off, and nothing else.
            address = victim.address.removeprefix("http://")
            cut = [reply for reply in visitor.replies if not reply.is_result]
            assert all(reply.answer is None or reply.answer.headers["worker"] == address for reply in cut), told(cut)
        assert_each_result_ran(visitors, notes)

    env = environment(redis, notes)
    # nginx's own way: the next worker is tried where the first cannot be reached, before anything was sent to it.
    with several(server, 3, redis, layer=layer, env=env, next_upstream="error timeout") as workers:
        asyncio.run(work(workers))
    assert_none_ran_twice(notes)


@pytest.mark.parametrize(("server", "layer"), [("runmcp", "core"), ("uvicorn", "pubsub")])
def test_a_stopped_worker_answers_its_calls_in_flight_and_then_its_sessions_get_404(
    server: str, layer: str, redis: Redis, notes: Notes
) -> None:
    async def work(workers: Workers) -> None:
        leaving, staying = workers.each
        going, stays = await opened_at(leaving), await opened_at(staying)
        visitors = [Visitor(await opened_at(staying), staying, staying.address) for _ in range(4)]
        async with visited(visitors):
            messages = [named_call(seconds=1.5) for _ in range(3)]
            ways = [(leaving, going), (staying, going), (leaving, stays)]
            in_flight = [
                asyncio.create_task(exchange(worker.address, message, session))
                for (worker, session), message in zip(ways, messages, strict=True)
            ]
            names = {f"{message['params']['arguments']['name']} ran" for message in messages}
            await until(lambda: names <= set(notes.all()), "all three are in flight")
            leaving.process.signal(signal.SIGTERM)
            replies = [await each for each in in_flight]
            status = await asyncio.to_thread(leaving.process.wait)
            gone = time.monotonic()
            after = [await exchange(staying.address, named_call(), going) for _ in range(3)]
            await until(lambda: all(len(visitor.since(gone)) >= 5 for visitor in visitors), "the others go on")

        assert [reply.is_result for reply in replies] == [True, True, True], told(replies)
        assert status in ((0,) if server == "runmcp" else (0, -signal.SIGTERM)), leaving.process.errors
        assert [reply.status for reply in after] == [404, 404, 404], told(after)
        assert after[0].came - after[0].sent < 5, told(after)
        for visitor in visitors:
            assert all(reply.is_result for reply in visitor.replies), told(visitor.replies)

    with started(server, 2, redis, layer=layer, env=environment(redis, notes)) as each:
        asyncio.run(work(Workers(each, "")))
    assert_none_ran_twice(notes)


@pytest.mark.parametrize(("server", "layer"), [("daphne", "core"), ("uvicorn", "pubsub")])
def test_while_redis_is_unavailable_sessions_work_at_their_own_worker_and_afterwards_everywhere(
    server: str, layer: str, redis_of_its_own: Redis, notes: Notes
) -> None:
    redis = redis_of_its_own

    async def work(each: list[Worker]) -> None:
        first, second = each
        local = [Visitor(await opened_at(worker), worker, worker.address) for worker in each for _ in range(2)]
        ways = [(first, second), (second, first)]
        relayed = [Visitor(await opened_at(owner), owner, to.address) for owner, to in ways for _ in range(3)]
        async with visited(local + relayed):
            for _ in range(2):
                stopping = time.monotonic()
                await asyncio.to_thread(redis.stop)
                away = time.monotonic()
                await until(lambda: all(len(x.since(away)) >= 3 for x in local + relayed), "all see that it is away")  # noqa: B023
                before = time.monotonic()
                await asyncio.to_thread(redis.start)
                back = time.monotonic()
                await until(
                    lambda: all(any(r.is_result for r in x.since(back)) for x in local + relayed),  # noqa: B023
                    "everybody is answered again",
                )
                for visitor in relayed:
                    gone = [reply for reply in visitor.since(away) if reply.came <= before]
                    assert {reply.status for reply in gone} <= {503}, told(gone)
                    assert all(reply.answer and reply.answer.headers["retry-after"] for reply in gone)
                    unanswered = [reply for reply in visitor.since(stopping) if not reply.is_result]
                    assert {reply.status for reply in unanswered if reply.sent >= away} == {503}, told(unanswered)
            settled = time.monotonic()
            await until(lambda: all(len(x.since(settled)) >= 5 for x in local + relayed), "all go on")
        for visitor in local:
            assert all(reply.is_result for reply in visitor.replies), told(visitor.replies)
        for visitor in relayed:
            assert all(reply.is_result for reply in visitor.since(settled)), told(visitor.since(settled))
        assert_each_result_ran(local + relayed, notes)

    with started(server, 2, redis, layer=layer, env=environment(redis, notes)) as each:
        asyncio.run(work(each))
    assert_none_ran_twice(notes)


MEGABYTES = 200
STEPS = 16 * MEGABYTES


@pytest.mark.parametrize(("server", "layer"), [("daphne", "core"), ("uvicorn", "pubsub")])
def test_a_client_that_does_not_read_a_relayed_response_fills_neither_redis_nor_a_worker(
    server: str, layer: str, redis_of_its_own: Redis, notes: Notes
) -> None:
    redis = redis_of_its_own

    async def work(each: list[Worker]) -> None:
        owner, other = each
        # The SDK holds up all of a session whose client does not read: what goes on is another one.
        session, going_on = await opened_at(owner), await opened_at(owner)
        assert (await exchange(other.address, named_call(), going_on)).is_result
        with redis.client() as asking:

            def held() -> dict[str, int]:
                return {
                    "redis": int(asking.info("memory")["used_memory"]),
                    **{name: resident_memory(worker.process) for name, worker in (("owner", owner), ("other", other))},
                }

            async with Clients(other.address) as clients:
                before = held()
                named = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
                connection = await clients.connect(**named)
                message = call("flood", "flood", megabytes=MEGABYTES)
                message["params"]["_meta"] = {"progressToken": 1}
                connection.send("POST", "/mcp", message)
                answer = await connection.head()
                most = before
                watched_until = time.monotonic() + 2  # enough for all of it, if nothing held it back
                while time.monotonic() < watched_until:
                    assert (await exchange(other.address, named_call(), going_on)).is_result
                    now = held()
                    most = {name: max(most[name], now[name]) for name in now}
                grown = {name: most[name] - before[name] for name in most}
                print(f"grown by {', '.join(f'{name} {size / 1e6:.1f} MB' for name, size in grown.items())}")
                assert max(grown.values()) < LITTLE, grown
                arriving = connection.events(answer)
                for step in range(400):  # 25 MB: several times what fits into all the buffers on the way
                    assert (await anext(arriving))["params"]["message"] == f"{step:08}" * 2**13
                now = held()
                assert all(now[name] - before[name] < LITTLE for name in now), (before, now)
        # The client has left: the owner sees the call through, and the session goes on.
        await asyncio.to_thread(notes.wait_for, "flood finished")
        assert (await exchange(other.address, named_call(), session)).is_result

    with started(server, 2, redis, layer=layer, env=environment(redis, notes)) as each:
        asyncio.run(work(each))


def test_without_a_shared_layer_another_worker_does_not_know_the_session(notes: Notes) -> None:
    with started("uvicorn", 2, None, env={**in_django.ENVIRONMENT, **notes.env}) as (one, two):
        session = open_session(one.address, "/mcp")
        assert text_of(result_of(post(one.address, "/mcp", call(1, "process"), session))) == str(one.process.pid)
        for _ in range(2):
            unknown = post(two.address, "/mcp", call(1, "process"), session)
            unknown.read()
            assert unknown.status == 404
        assert two.process.errors.count("configure a channel layer that all workers share") == 1
