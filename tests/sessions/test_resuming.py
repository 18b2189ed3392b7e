"""A client that lost its connection resumes its own events, within the limits, from memory or from Redis."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from mcp_serving import InMemoryEventStore, RedisEventStore, StreamableHTTPHandler, current_request
from mcp_serving.asgi import lifecycle
from mcp_serving.sessions.bounded_event_store import BoundedEventStore
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.sessions.resumption import replay_missed_events
from tests.support.asgi_servers import serving
from tests.support.harness import DEADLINE, INITIALIZE, Process, call, text_of, wait_until
from tests.support.private_redis import Redis
from tests.support.raw_http import Request, headers_of, open_session, post

Stores = Callable[..., BoundedEventStore]


@pytest.fixture(params=["memory", "redis"])
def stores(request: pytest.FixtureRequest) -> Stores:
    """Makes stores with the bounds it is given."""
    if request.param == "memory":
        return InMemoryEventStore
    redis: Redis = request.getfixturevalue("redis")

    def make(**bounds: Any) -> RedisEventStore:
        # A machine that is busy is no outage.
        return RedisEventStore(redis.url, prefix=f"{uuid.uuid4()}:", timeout=DEADLINE, **bounds)

    return make


def at_hand(session: str) -> AbstractContextManager[None]:
    return current_request.updated(session_nonce=session)


@asynccontextmanager
async def events_of(store: BoundedEventStore, session: str = "a") -> AsyncIterator[SessionEvents]:
    """What the SDK is given, in a session."""
    events = SessionEvents(store)
    with at_hand(session):
        yield events
    await events.aclose()


def progress(number: int | str) -> JSONRPCNotification:
    params = {"progressToken": 1, "progress": number}
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params)


def result(text: str = "done", request_id: int | str = 1) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result={"text": text})


def told(message: JSONRPCMessage) -> Any:
    if isinstance(message, JSONRPCError):
        return message.error.message
    if isinstance(message, JSONRPCResponse):
        return message.result["text"]
    assert isinstance(message, JSONRPCNotification)
    assert message.params is not None
    return message.params["progress"]


async def left(events: SessionEvents, last_event_id: str) -> list[Any]:
    found, _ = await events.missed_after(last_event_id)
    return [told(event.message) for event in found]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log has, beyond information."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def reached(condition: Callable[[], Any], what: str) -> None:
    """Wait for it while the event loop runs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


# What is replayed


@pytest.mark.process
def test_resuming_replays_the_later_events_of_the_same_stream_only(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            first = await events.store_event("1", None)
            await events.store_event("2", progress("of another call"))
            second = await events.store_event("1", progress(1))
            await events.store_event("1", None)
            await events.store_event("_GET_stream", progress("of the server's own"))
            last = await events.store_event("1", result("ünï\u2028\n"))
            assert await left(events, first) == [1, "ünï\u2028\n"]
            assert await left(events, second) == ["ünï\u2028\n"]
            assert await left(events, last) == []
            found, stream = await events.missed_after(first)
            assert (stream, [event.event_id for event in found]) == ("1", [second, last])
            assert found[-1].message == result("ünï\u2028\n")

    asyncio.run(work())


@pytest.mark.process
@pytest.mark.parametrize("request_id", ["a:b", "1-0:1", "ü/ %\r\nid: 7", '"', "x" * 200])
def test_requests_may_have_any_id(request_id: str, stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            first = await events.store_event(request_id, None)
            await events.store_event(request_id, result(request_id=request_id))
            found, stream = await events.missed_after(first)
            assert (stream, [event.message for event in found]) == (request_id, [result(request_id=request_id)])
            assert first.isascii()
            assert first.isprintable()

    asyncio.run(work())


@pytest.mark.process
def test_events_of_a_request_with_a_very_long_id_are_not_stored(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            assert await events.store_event("x" * 10_000, result()) == ""

    asyncio.run(work())


@pytest.mark.process
def test_a_resumed_stream_ends_after_the_response_and_otherwise_waits_for_more_events(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            sent: list[EventMessage] = []

            async def send(event: EventMessage) -> None:
                sent.append(event)

            running = await events.store_event("1", None)
            answered = await events.store_event("2", None)
            no_request = JSONRPCError(jsonrpc="2.0", id=None, error={"code": -32700, "message": "no answer"})
            of_the_server = await events.store_event("_GET_stream", None)
            await events.store_event("2", result())
            await events.store_event("_GET_stream", no_request)
            for event_id, stream in ((running, "1"), (answered, None), (of_the_server, "_GET_stream")):
                assert await asyncio.create_task(events.replay_events_after(event_id, send)) == stream
            assert [told(event.message) for event in sent] == ["done", "no answer"]

    asyncio.run(work())


@pytest.mark.process
def test_an_event_that_arrives_during_a_replay_is_not_skipped_by_the_next_replay(stores: Stores) -> None:
    """The SDK stores what a resumed stream begins with after the replay: an event may be between the two."""

    async def work() -> None:
        async with events_of(stores()) as events:

            async def send(event: EventMessage) -> None:
                pass

            async def resume() -> str:
                assert await events.replay_events_after(first, send) == "1"
                await asyncio.create_task(events.store_event("1", result("in between")))
                return await events.store_event("1", None)

            first = await events.store_event("1", None)
            await events.store_event("1", progress(1))
            assert await left(events, await asyncio.create_task(resume())) == ["in between"]

    asyncio.run(work())


# Whose it is


@pytest.mark.process
@pytest.mark.parametrize("stream", ["1", "_GET_stream"])
def test_no_event_id_leads_to_the_events_of_another_session(stream: str, stores: Stores) -> None:
    """Neither through the signature of the ids, nor without it."""

    async def work() -> None:
        store = stores()
        async with events_of(store) as events:
            signed = await events.store_event(stream, None)
            unsigned = await store.store_event(f"a:{stream}", None)
            await events.store_event(stream, progress("a's"))
            with at_hand("b"):
                await events.store_event(stream, progress("b's"))
                for event_id in (signed, unsigned, "0:1", "0-0:1", f"0:{stream}", "nonsense", signed[:-1], ""):
                    assert await events.missed_after(event_id) == ([], None)
                found: list[Any] = []

                async def keep(event: EventMessage) -> None:
                    found.append(told(event.message))

                for event_id in (unsigned, f"0:{stream}", f"0-0:{stream}", "a:1", "nonsense", ":", f"-:{stream}"):
                    await store.replay_events_after(event_id, keep)
                assert set(found) == {"b's"}

    asyncio.run(work())


@pytest.mark.process
def test_without_a_session_no_event_is_stored(stores: Stores) -> None:
    """As under the SDK's own application, where request 1 is in each session."""

    async def work() -> None:
        store = stores()
        with pytest.raises(RuntimeError, match="works only as the event_store of mcp_serving"):
            await store.store_event("1", result())
        with pytest.raises(RuntimeError, match="the session of each event"):
            await store.replay_events_after("0:1", lambda event: asyncio.sleep(0))

    asyncio.run(work())


@pytest.mark.process
def test_many_concurrent_sessions_each_get_their_own_events_in_order(stores: Stores) -> None:
    async def one(store: BoundedEventStore, session: str) -> None:
        events = SessionEvents(store)
        with at_hand(session):
            first = await events.store_event("1", None)
            for number in range(20):
                await events.store_event("1", progress(f"{session} {number}"))
                await events.store_event("2", progress("of another call"))
            assert await left(events, first) == [f"{session} {number}" for number in range(20)]

    async def work() -> None:
        store = stores()
        await asyncio.gather(*(asyncio.create_task(one(store, str(session))) for session in range(40)))
        await store.aclose()

    asyncio.run(work())


# How much, and how long


@pytest.mark.process
def test_the_latest_events_are_stored_and_replayed_after_a_deleted_one(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores(max_events=3)) as events:
            first = await events.store_event("1", None)
            for number in range(5):
                await events.store_event("1", progress(number))
            assert await left(events, first) == [2, 3, 4]
            with at_hand("b"):
                await events.store_event("1", progress("b's"))  # which takes nothing from the other
            assert await left(events, first) == [2, 3, 4]

    asyncio.run(work())


@pytest.mark.process
def test_the_number_of_stored_bytes_is_limited(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores(max_bytes=10_000)) as events:
            first = await events.store_event("1", None)
            for number in range(7):
                await events.store_event("1", progress(f"{number}{'ü' * 1400}"))  # about 2,900 bytes each
            assert [text[0] for text in await left(events, first)] == ["4", "5", "6"]
            await events.store_event("1", progress("x" * 9_900))
            assert [text[0] for text in await left(events, first)] == ["x"]

    asyncio.run(work())


@pytest.mark.process
def test_a_result_that_is_too_large_to_be_stored_is_replaced_by_an_error(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores(max_bytes=10_000)) as events:
            first = await events.store_event("1", None)
            await events.store_event("1", progress("small"))
            too_large = await events.store_event("1", progress("x" * 10_000))
            await events.store_event("1", result("x" * 10_000, request_id="one"))
            (small, error), _ = await events.missed_after(first)
            assert told(small.message) == "small"
            assert isinstance(error.message, JSONRPCError)
            assert (error.message.id, told(error.message)) == (
                "one",
                "The result was too large to be stored until you came back.",
            )
            assert len(await left(events, too_large)) == 1

    asyncio.run(work())


@pytest.mark.process
def test_an_old_event_is_deleted_while_its_session_continues(stores: Stores, redis: Redis) -> None:
    async def work() -> None:
        store = stores(max_age=0.5)
        async with events_of(store) as events:
            first = await events.store_event("1", None)
            await events.store_event("1", progress("old"))
            stored = 1
            end = time.monotonic() + DEADLINE
            while "old" in await left(events, first) or kept(store, redis) == stored:
                assert time.monotonic() < end
                await events.store_event("1", progress("new"))
                stored += 1
                assert "new" in await left(events, first)
                await asyncio.sleep(0.02)
            assert kept(store, redis) > 1

    asyncio.run(work())


@pytest.mark.process
def test_the_events_of_1000_sessions_leave_nothing_behind(stores: Stores, redis: Redis) -> None:
    async def one(store: BoundedEventStore, session: int) -> None:
        with at_hand(f"session-{session}"):
            for number in range(3):
                await store.store_event("1", progress(number))

    async def work() -> None:
        store = stores(max_age=1)
        await asyncio.gather(*(asyncio.create_task(one(store, session)) for session in range(1000)))
        await reached(lambda: not kept(store, redis), "no event is left")
        await store.aclose()

    asyncio.run(work())


def kept(store: BoundedEventStore, redis: Redis) -> int:
    """How many events there are of all sessions."""
    if isinstance(store, InMemoryEventStore):
        assert len(store._sessions) <= len(store._events)
        assert (store._size > 0) == bool(store._events)
        return len(store._events)
    assert isinstance(store, RedisEventStore)
    with redis.client() as client:
        return sum(client.xlen(key) or 1 for key in client.keys(f"{store._prefix}*"))


def test_in_memory_the_size_of_all_events_together_is_limited() -> None:
    async def work() -> None:
        store = InMemoryEventStore(max_bytes=10_000, max_total_bytes=100_000)
        async with events_of(store) as events:
            for session in range(100):
                with at_hand(str(session)):
                    first = await events.store_event("1", None)
                    for _ in range(3):
                        await events.store_event("1", progress("x" * 3000))
            assert len(store._events) in (26, 27)
            assert len(await left_in("99", first, events)) == 3

    async def left_in(session: str, event_id: str, events: SessionEvents) -> list[Any]:
        with at_hand(session):
            return await left(events, event_id)

    asyncio.run(work())


@pytest.mark.process
def test_the_events_of_a_session_need_as_much_memory_in_redis_as_documented(redis: Redis) -> None:
    async def held(events: int) -> int:
        """The bytes of a session with so many notifications of progress."""
        store = RedisEventStore(redis.url, prefix=f"{uuid.uuid4()}:", timeout=DEADLINE)
        with at_hand("a"):
            for number in range(events):
                await store.store_event("a:1", progress(number))
        await store.aclose()
        with redis.client() as client:
            return int(client.memory_usage(f"{store._prefix}a", samples=0))

    text = len(progress(500).model_dump_json(by_alias=True, exclude_unset=True))
    first, thousand = asyncio.run(held(1)), asyncio.run(held(1000))
    assert 4_000 < first < 5_000
    assert 130_000 < thousand < 150_000
    assert 35 < thousand / 1000 - text < 55


@pytest.mark.process
def test_deleting_the_events_of_a_session_leaves_nothing_behind(stores: Stores, redis: Redis) -> None:
    async def work() -> None:
        store = stores()
        async with events_of(store) as events:
            first = await events.store_event("1", None)
            await events.store_event("1", result())
            await events.forget()
            assert await left(events, first) == []
            assert not kept(store, redis)
            await events.store_event("1", progress(1))  # of a call that has not ended yet
            assert await left(events, first) == [1]

    asyncio.run(work())


@pytest.mark.process
@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ({"max_events": 0}, "max_events is 0"),
        ({"max_events": True}, "max_events is True"),
        ({"max_age": 0}, "max_age is 0"),
        ({"max_age": float("nan")}, "max_age is nan"),
        ({"max_age": "1"}, "max_age is '1'"),
        ({"max_bytes": 10}, "max_bytes is 10"),
    ],
)
def test_an_invalid_limit_of_an_event_store_is_an_error(bounds: dict[str, Any], named: str, stores: Stores) -> None:
    with pytest.raises(ValueError, match=named):
        stores(**bounds)


def test_an_invalid_total_limit_timeout_or_number_of_connections_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_total_bytes is 5000"):
        InMemoryEventStore(max_bytes=10_000, max_total_bytes=5000)
    for wrong in ({"timeout": 0}, {"timeout": float("inf")}, {"max_connections": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RedisEventStore("redis://localhost", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["", None, "localhost", "http://localhost", "redis://:pass/word@host:1/0", "redis://localhost/0?unknown=1"]
)
def test_an_invalid_redis_url_is_an_error_without_the_password(url: Any) -> None:
    with pytest.raises(ValueError, match="must be like redis://") as raised:
        RedisEventStore(url)
    assert "pass" not in str(raised.value).replace("password", "")
    assert raised.value.__suppress_context__


def test_without_the_package_redis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.exceptions", None)
    with pytest.raises(ImportError) as raised:
        RedisEventStore("redis://localhost")
    assert (
        str(raised.value)
        == "RedisEventStore needs the package redis. Install it with: pip install 'mcp-serving[redis]'"
    )


# Redis, away and back


async def kept_again(events: SessionEvents) -> str:
    """The id of the first event that is kept after an outage."""
    end = time.monotonic() + DEADLINE
    while not (event_id := await events.store_event("1", progress("again"))):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    return event_id


@pytest.mark.process
def test_while_redis_is_stopped_events_take_no_time_and_one_line_is_logged(
    redis_of_its_own: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with events_of(RedisEventStore(redis_of_its_own.url)) as events:
            first = await events.store_event("1", None)
            await events.store_event("1", progress(1))
            redis_of_its_own.stop()
            began = time.monotonic()
            for _ in range(100):
                assert await events.store_event("1", progress(2)) == ""
                assert await events.replay_events_after(first, lambda event: asyncio.sleep(0)) is None
            await events.forget()
            assert time.monotonic() - began < 10  # a hundred times the timeout would be more
            redis_of_its_own.start()
            assert await left(events, await kept_again(events)) == []
            assert await left(events, first) == ["again"]

    asyncio.run(work())
    storing, reading, *again = lines(caplog)
    cause = "(ConnectionError: Redis does not answer: ConnectionError: "
    assert storing.startswith(f"Events are not stored, so that clients cannot resume streams after them {cause}")
    assert reading.startswith(f"Stored events cannot be read, so that clients cannot resume streams {cause}")
    assert again == ["Events are stored again.", "Stored events can be read again."]
    assert "Traceback" not in caplog.text


@pytest.mark.process
@pytest.mark.serial
def test_while_redis_hangs_one_event_at_a_time_waits_for_it(
    redis_of_its_own: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def seconds_of_one(events: SessionEvents) -> float:
        asked = time.monotonic()
        assert await events.store_event("1", progress(2)) == ""
        return time.monotonic() - asked

    async def work() -> None:
        async with events_of(RedisEventStore(redis_of_its_own.url, timeout=0.3)) as events:
            await events.store_event("1", progress(1))
            with redis_of_its_own.client() as client:
                client.client_pause(3500)
            began = time.monotonic()
            waited = []
            while time.monotonic() - began < 3:
                waited += await asyncio.gather(*(asyncio.create_task(seconds_of_one(events)) for _ in range(10)))
                await asyncio.sleep(0.01)
            assert len(waited) > 200
            # Those that were under way when it was found out, and later one of ten.
            assert len([seconds for seconds in waited if seconds > 0.15]) < 15
            assert max(waited) < 1
            await kept_again(events)

    asyncio.run(work())
    assert len(lines(caplog)) == 2


@pytest.mark.process
def test_no_event_is_lost_with_a_connection_that_redis_has_closed(redis: Redis) -> None:
    async def work() -> None:
        async with events_of(RedisEventStore(redis.url)) as events:
            first = await events.store_event("1", None)
            with redis.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            await events.store_event("1", progress(1))
            assert await left(events, first) == [1]

    asyncio.run(work())


@pytest.mark.process
def test_a_handler_closes_its_redis_connections_and_can_start_in_another_event_loop(redis_of_its_own: Redis) -> None:
    handler = StreamableHTTPHandler(MCPServer("again"), event_store=RedisEventStore(redis_of_its_own.url))

    async def opened() -> httpx2.Response:
        transport = httpx2.ASGITransport(handler)
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
                return await client.post("/mcp", json=INITIALIZE, headers=headers_of(INITIALIZE))
        finally:
            await lifecycle.close()

    for _ in range(3):
        assert b"id: 0-0:initialize" in asyncio.run(opened()).content
    with redis_of_its_own.client() as client:
        wait_until(lambda: len(client.client_list()) == 1, "the connections are closed")


# What is left of a session whose worker is gone


async def asked(events: SessionEvents, method: str = "GET", **headers: str) -> tuple[bool, int, str]:
    """Whether ``replay_missed_events`` has answered, and what."""
    sent: list[dict[str, Any]] = []
    given = {"accept": "text/event-stream", "mcp-session-id": "session", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
    }

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(DEADLINE)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(DEADLINE):
        answered = await replay_missed_events(events, "session", scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent).decode()
    if sent:
        assert not sent[-1].get("more_body", False)
    return answered, sent[0]["status"] if sent else 0, body


@pytest.mark.process
def test_the_missed_events_of_a_lost_session_are_replayed_and_the_stream_ends(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            first = await events.store_event("1", None)
            second = await events.store_event("1", progress(1))
            answered, status, body = await asked(events, last_event_id=first)
            assert (answered, status) == (True, 200)
            assert [json.loads(line[6:])["method"] for line in body.splitlines() if line.startswith("data: ")] == [
                "notifications/progress"
            ]
            assert f"id: {second}" in body
            last = await events.store_event("1", result("what was missed"))
            answered, status, body = await asked(events, last_event_id=second)
            assert (answered, status, "what was missed" in body) == (True, 200, True)
            assert (await asked(events, last_event_id=last)) == (False, 0, "")

    asyncio.run(work())
    assert lines(caplog) == []


@pytest.mark.process
def test_without_missed_events_a_lost_session_is_not_resumed(stores: Stores) -> None:
    async def work() -> None:
        async with events_of(stores()) as events:
            first = await events.store_event("1", None)
            assert await asked(events, last_event_id=first) == (False, 0, "")
            await events.store_event("1", progress(1))
            for event_id in ("nonsense", "0:1", "0-0:1", first[:-1]):
                assert await asked(events, last_event_id=event_id) == (False, 0, "")
            assert await asked(events) == (False, 0, "")
            assert await asked(events, "POST", last_event_id=first) == (False, 0, "")
            with at_hand("b"):
                assert await asked(events, last_event_id=first) == (False, 0, "")

    asyncio.run(work())


@pytest.mark.process
def test_while_redis_is_unavailable_resuming_gets_503_with_retry_after(redis_of_its_own: Redis) -> None:
    async def work() -> None:
        async with events_of(RedisEventStore(redis_of_its_own.url)) as events:
            first = await events.store_event("1", None)
            redis_of_its_own.stop()
            assert await asked(events, last_event_id=first) == (True, 503, "The events cannot be read.\n")

    asyncio.run(work())


# In processes


@contextmanager
def worker(redis: Redis) -> Iterator[tuple[Process, str]]:
    with serving("runmcp", "tests.project.resuming_asgi", env={"TEST_REDIS_URL": redis.url}) as served:
        yield served


def left_call(address: str, path: str, session: str, seconds: float) -> str:
    """A call whose client has left before its result came; the id of its first event."""
    answer = post(address, path, call(1, "slow", seconds=seconds, name="missed"), session)
    first = answer.event()["id"]
    answer.leave()
    return first


def lost_call(address: str, path: str, session: str) -> str:
    """A call whose answer its client has lost but for the first event; its id."""
    answer = post(address, path, call(1, "slow", seconds=0, name="missed"), session)
    first = answer.event()["id"]
    assert b"missed finished" in answer.read()
    return first


def resumed(address: str, path: str, session: str, event_id: str) -> Request:
    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": session, "Last-Event-ID": event_id}
    return Request(address, path, headers={**headers, "MCP-Protocol-Version": "2025-11-25"})


def keys(redis: Redis) -> int:
    with redis.client() as client:
        return len(client.keys("mcp_serving:events:*"))


def is_stored(redis: Redis, text: str) -> bool:
    """Whether an event with this text is stored, and not only the first event of a stream, which is empty."""
    with redis.client() as client:
        streams = [key for key in client.keys("mcp_serving:events:*") if client.type(key) in (b"stream", "stream")]
        return any(text in str(client.xrange(key)) for key in streams)


@pytest.mark.process
def test_a_client_that_resumes_gets_its_result_and_the_end_of_the_stream(redis_of_its_own: Redis) -> None:
    with worker(redis_of_its_own) as (process, address):
        for path in ("/memory", "/redis"):
            session = open_session(address, path)
            stream = resumed(address, path, session, left_call(address, path, session, 0.3))
            events = [stream.event()]
            while "result" not in events[-1].get("data", ""):
                events.append(stream.event())
            assert text_of(json.loads(events[-1]["data"])) == "missed finished"
            again = resumed(address, path, session, events[0]["id"])
            stream.leave()
            assert again.status == 200
            again.leave()
            assert b"missed finished" in whole(address, path, session, lost_call(address, path, session))
            assert keys(redis_of_its_own) == (path == "/redis")
            assert httpx2.delete(address + path, headers={"Mcp-Session-Id": session}).status_code == 200
            assert keys(redis_of_its_own) == 0
        assert "Traceback" not in process.errors


def status(request: Request) -> int:
    request.leave()
    return request.status


def whole(address: str, path: str, session: str, event_id: str) -> bytes:
    """A resumed stream up to its end."""
    return resumed(address, path, session, event_id).read()


@pytest.mark.process
def test_missed_events_outlive_the_worker(redis_of_its_own: Redis) -> None:
    with worker(redis_of_its_own) as (process, address), worker(redis_of_its_own) as (other, its_address):
        session = open_session(address, "/redis")
        first = left_call(address, "/redis", session, 0)
        wait_until(lambda: is_stored(redis_of_its_own, "missed finished"), "the result is stored")
        process.signal(signal.SIGKILL)
        process.wait()
        stream = resumed(its_address, "/redis", session, first)
        assert (stream.status, stream.header("mcp-session-id")) == (200, session)
        event = stream.event()
        assert text_of(json.loads(event["data"])) == "missed finished"
        assert stream.read() == b""  # and it ends
        # Nothing more comes: its client opens a new session.
        assert status(resumed(its_address, "/redis", session, event["id"])) == 404
        assert status(post(its_address, "/redis", call(2, "echo", text="hello"), session)) == 404
        with redis_of_its_own.client() as client:
            client.flushall()
        assert status(resumed(its_address, "/redis", session, first)) == 404
        redis_of_its_own.stop()
        away = resumed(its_address, "/redis", session, first)
        assert (away.status, away.header("retry-after"), away.read()) == (503, "5", b"The events cannot be read.\n")
        assert "Traceback" not in other.errors


@pytest.mark.process
def test_a_session_that_its_client_has_ended_cannot_be_resumed_by_any_worker(redis_of_its_own: Redis) -> None:
    with worker(redis_of_its_own) as (_, address), worker(redis_of_its_own) as (_, its_address):
        session = open_session(address, "/redis")
        first = left_call(address, "/redis", session, 0)
        wait_until(lambda: keys(redis_of_its_own), "the result is kept")
        assert httpx2.delete(f"{address}/redis", headers={"Mcp-Session-Id": session}).status_code == 200
        for each in (address, its_address):
            assert status(resumed(each, "/redis", session, first)) == 404


@pytest.mark.process
def test_calls_are_answered_while_redis_is_unavailable_and_can_be_resumed_afterwards(redis_of_its_own: Redis) -> None:
    def has_id(answer: bytes) -> bool:
        return b"id: " in answer.replace(b"id: \r\n", b"")

    def answer_of_call() -> bytes:
        answer = post(address, "/redis", call(1, "echo", text="answered"), session).read()
        assert b"answered" in answer
        return answer

    with worker(redis_of_its_own) as (process, address):
        session = open_session(address, "/redis")
        before = lost_call(address, "/redis", session)
        assert has_id(answer_of_call())
        redis_of_its_own.stop()
        began = time.monotonic()
        for _ in range(20):
            assert not has_id(answer_of_call())
        stream = resumed(address, "/redis", session, before)
        assert (stream.status, stream.read()) == (200, b"")  # and its client tries again
        assert time.monotonic() - began < 15
        redis_of_its_own.start()
        wait_until(lambda: has_id(answer_of_call()), "events are kept again")
        assert b"missed finished" in whole(address, "/redis", session, lost_call(address, "/redis", session))
        process.wait_for("Stored events can be read again")
        for line in ("Events are not stored", "Events are stored again", "Stored events cannot be read"):
            assert process.errors.count(line) == 1, process.errors
        assert "Traceback" not in process.errors
