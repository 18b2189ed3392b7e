"""Messages between workers, over a layer that delivers twice, loses, and is full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from channels.exceptions import ChannelFull
from channels.layers import InMemoryChannelLayer
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.authentication import SimpleUser

from mcp_serving.sessions.limits import Limits
from mcp_serving.sessions.manager import Sessions
from mcp_serving.workers import timeouts
from mcp_serving.workers.messaging import Messaging
from mcp_serving.workers.outgoing_request import RelayResult
from mcp_serving.workers.relay import Relay
from tests.support.harness import DEADLINE

Message = dict[str, Any]


class FaultyLayer(InMemoryChannelLayer):
    """The in-memory layer; ``fault`` says how often each message is delivered, or raises.

    Messages to the channels in ``held_up`` are delivered by ``release`` only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[list[str]], int] = lambda kinds: 1
        self.sent: list[str] = []
        self.held_up: set[str] = set()
        self._held: list[tuple[str, Message]] = []

    async def send(self, channel: str, message: Message) -> None:
        kinds = [frame["kind"] for frame in message.get("frames", ())]
        times = self.fault(kinds)
        self.sent += kinds
        if channel in self.held_up:
            self._held.append((channel, message))
            return
        for _ in range(times):
            await super().send(channel, message)

    async def release(self) -> None:
        """Deliver the messages that were held up."""
        self.held_up.clear()
        for channel, message in self._held:
            await super().send(channel, message)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body of the request, in two parts."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body[:3], "more_body": True})
    await send({"type": "http.response.body", "body": body[3:]})


class Client:
    """One request, and what its client gets."""

    def __init__(self, body: bytes = b"hello") -> None:
        self.body = b""
        self.status = 0
        self.is_over = False
        self._given = [{"type": "http.request", "body": body, "more_body": False}]
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        if self._given:
            return self._given.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.is_over = not message.get("more_body", False)

    async def asks(self, relay: Relay, owner: str, **more: Any) -> RelayResult:
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], **more}
        async with asyncio.timeout(DEADLINE):
            return await relay.relay(owner, scope, self.receive, self.send)


@asynccontextmanager
async def two(layer: InMemoryChannelLayer, serve: Any = echo) -> AsyncIterator[tuple[Relay, Relay]]:
    async with AsyncExitStack() as stack:
        relays = []
        for _ in range(2):
            relay = Relay(layer, serve, "/mcp", 10_000_000)
            await stack.enter_async_context(relay.open())
            relays.append(relay)
        yield relays[0], relays[1]


def run(work: Callable[[], Awaitable[None]]) -> None:
    anyio.run(work)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that soon take a silent one for gone."""
    monkeypatch.setattr(timeouts, "PEER", 0.6)
    monkeypatch.setattr(timeouts, "PING_INTERVAL", 0.1)


def test_a_message_that_the_layer_delivers_twice_is_handled_once() -> None:
    async def work() -> None:
        layer = FaultyLayer()
        layer.fault = lambda kinds: 2
        served: list[bytes] = []

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            served.append(b"once")
            await echo(scope, receive, send)

        async with two(layer, serve) as (here, there):
            for number in range(3):
                client = Client(b"number %d" % number)
                assert await client.asks(here, there.channel) is RelayResult.ANSWERED
                assert (client.status, client.body, client.is_over) == (200, b"number %d" % number, True)
        assert len(served) == 3

    run(work)


def test_a_message_that_arrives_although_sending_it_failed_disturbs_no_other() -> None:
    async def work() -> None:
        failures = ["response", "request"]

        class UnsureLayer(FaultyLayer):
            async def send(self, channel: str, message: Message) -> None:
                await super().send(channel, message)
                if failures and failures[-1] in self.sent[-1:]:
                    failures.pop()
                    raise OSError("no answer")

        async with two(UnsureLayer()) as (here, there):
            client = Client()
            await client.asks(here, there.channel)
            assert client.status == 503  # nobody knows
            for _ in range(2):
                client = Client()
                await client.asks(here, there.channel)
                assert (client.status, client.body, client.is_over) == (200, b"hello", True)

    run(work)


def test_a_response_that_one_worker_gives_up_is_given_up_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PEER", 0.3)
    monkeypatch.setattr(timeouts, "PING_INTERVAL", 0.05)

    async def work() -> None:
        layer = FaultyLayer()
        is_full = True

        def be_full(kinds: list[str]) -> int:
            if is_full and ("response" in kinds or "lost" in kinds):
                raise ChannelFull
            return 1

        layer.fault = be_full
        given_up = asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await echo(scope, receive, send)
            given_up.set()

        async with two(layer, serve) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            await given_up.wait()
            is_full = False
            await asking
            assert client.status in (0, 503)  # 0: the answer that was kept back counted as none
            async with asyncio.timeout(DEADLINE):
                while client.status != 200:
                    await asyncio.sleep(0.01)
                    client = Client()
                    await client.asks(here, there.channel)
            assert client.body == b"hello"

    run(work)


@pytest.mark.parametrize("lost", ["request", "response"])
def test_a_message_that_the_layer_loses_is_noticed_and_the_next_request_is_served(lost: str) -> None:
    async def work() -> None:
        layer = FaultyLayer()
        losses = [lost]

        def lose_one(kinds: list[str]) -> int:
            if losses and losses[0] in kinds:
                losses.pop()
                return 0
            return 1

        layer.fault = lose_one
        async with two(layer) as (here, there):
            client = Client()
            assert await client.asks(here, there.channel) is RelayResult.ANSWERED
            assert client.status == 503
            client = Client()
            assert await client.asks(here, there.channel) is RelayResult.ANSWERED
            assert (client.status, client.body) == (200, b"hello")

    run(work)


def test_a_request_waits_for_a_full_channel_and_then_gets_503() -> None:
    async def work() -> None:
        layer = FaultyLayer()
        full = 3

        def be_full(kinds: list[str]) -> int:
            nonlocal full
            if full and "request" in kinds:
                full -= 1
                raise ChannelFull
            return 1

        layer.fault = be_full
        async with two(layer) as (here, there):
            client = Client()
            await client.asks(here, there.channel)
            assert (client.status, client.body) == (200, b"hello")
            full = 1_000_000
            client = Client()
            await client.asks(here, there.channel)
            assert client.status == 503

    run(work)


@pytest.mark.parametrize("arrives", [True, False], ids=["it has", "it has not"])
def test_a_message_that_may_have_arrived_is_not_confused_with_the_next_one(
    arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "SEND", 0.2)

    class HangingLayer(FaultyLayer):
        hanging = asyncio.Event()
        hangs = False

        async def send(self, channel: str, message: Message) -> None:
            hangs, self.hangs = self.hangs, False
            if arrives or not hangs:
                await super().send(channel, message)
            if hangs:
                self.hanging.set()
                await asyncio.Event().wait()

    async def work() -> None:
        served: list[bytes] = []
        is_served, goes_on = asyncio.Event(), asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            served.append(message["body"])
            is_served.set()
            if message["body"] == b"goes on":
                await goes_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": message["body"]})

        layer = HangingLayer()
        async with two(layer, serve) as (here, there):
            long = Client(b"goes on")
            going_on = asyncio.ensure_future(long.asks(here, there.channel))
            await is_served.wait()
            layer.hangs = True
            first = Client(b"first")
            asking = asyncio.ensure_future(first.asks(here, there.channel))
            await layer.hanging.wait()

            async def ask(body: bytes) -> None:
                while True:
                    client = Client(body)
                    await client.asks(here, there.channel)
                    if client.status == 200:
                        assert client.body == body
                        return
                    assert client.status == 503

            await asyncio.gather(*(ask(b"number %d" % number) for number in range(3)))
            await asking
            assert first.status == (200 if arrives else 503)
            goes_on.set()
            await going_on
            assert (long.status, long.body) == (200, b"goes on")
            assert len(served) == len(set(served))

    run(work)


def test_a_response_that_is_given_up_while_the_other_worker_hangs_gets_503_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "PEER", 0.4)
    monkeypatch.setattr(timeouts, "PING_INTERVAL", 0.1)

    async def work() -> None:
        layer = FaultyLayer()
        is_full = asyncio.Event()

        def be_full(kinds: list[str]) -> int:
            if "response" in kinds:
                is_full.set()
                raise ChannelFull
            return 1

        layer.fault = be_full
        async with two(layer) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            await is_full.wait()
            time.sleep(0.5)  # noqa: ASYNC251  # as a process that is stopped: nobody's silence counts
            await asyncio.sleep(0.05)
            layer.fault = lambda kinds: 1
            await asking
            assert client.status == 503
            client = Client()
            await client.asks(here, there.channel)
            assert (client.status, client.body) == (200, b"hello")

    run(work)


def test_a_response_that_is_not_sent_to_a_worker_taken_to_be_gone_gets_503_there() -> None:
    async def work() -> None:
        is_asked = asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            is_asked.set()
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"too late"})

        async with two(FaultyLayer(), serve) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            await is_asked.wait()
            (incoming,) = there._incoming.values()
            there.handle_loss(incoming.peer, gone=True)
            await asking
            assert client.status == 503

    run(work)


def test_a_slow_client_slows_down_the_other_worker_and_gets_the_whole_response() -> None:
    async def work() -> None:
        written = 0

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            nonlocal written
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(100):
                await send({"type": "http.response.body", "body": b"x" * 50_000, "more_body": True})
                written += 50_000
            await send({"type": "http.response.body", "body": b""})

        class SlowClient(Client):
            reads = asyncio.Event()

            async def send(self, message: Message) -> None:
                await self.reads.wait()
                await super().send(message)

        async with two(InMemoryChannelLayer(), serve) as (here, there):
            client = SlowClient()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            before = -1
            while before != written:  # until it stands still
                before = written
                await asyncio.sleep(0.2)
            assert 0 < written < 500_000
            client.reads.set()
            await asking
            assert len(client.body) == 5_000_000

    run(work)


def test_the_worker_with_the_session_is_told_that_the_client_has_left() -> None:
    async def work() -> None:
        heard = asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            heard.set()

        async with two(InMemoryChannelLayer(), serve) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            await asyncio.sleep(0)
            client.left.set()
            assert await asking is RelayResult.ANSWERED
            async with asyncio.timeout(DEADLINE):
                await heard.wait()

    run(work)


def test_a_silent_worker_is_gone_after_the_timeout_and_then_at_once(impatient: None) -> None:
    async def work() -> None:
        layer = FaultyLayer()
        async with two(layer) as (here, there):
            silent = there.channel.replace("!", "!silent")
            assert await Client().asks(here, silent) is RelayResult.OWNER_GONE
            layer.sent.clear()
            assert await Client().asks(here, silent) is RelayResult.OWNER_GONE
            assert layer.sent == []

    run(work)


def test_a_silent_worker_is_gone_for_all_workers_until_it_answers_again(impatient: None) -> None:
    async def work() -> None:
        layer = FaultyLayer()
        async with two(layer) as (here, there), two(layer) as (held_up, _):
            layer.held_up.add(held_up.channel)
            assert await Client().asks(here, held_up.channel) is RelayResult.OWNER_GONE
            await anyio.wait_all_tasks_blocked()
            layer.sent.clear()
            assert await Client().asks(there, held_up.channel) is RelayResult.OWNER_GONE
            assert layer.sent == []
            await layer.release()
            await anyio.wait_all_tasks_blocked()
            for relay in (here, there):
                client = Client()
                assert await client.asks(relay, held_up.channel) is RelayResult.ANSWERED
                assert (client.status, client.body) == (200, b"hello")

    run(work)


def test_a_worker_that_hung_until_its_messages_expired_is_found_again(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "GONE_PING_INTERVAL", 0.5)

    async def work() -> None:
        layer = FaultyLayer()
        layer.fault = lambda kinds: 0
        async with two(layer) as (here, there):
            assert await Client().asks(here, there.channel) is RelayResult.OWNER_GONE
            layer.fault = lambda kinds: 1
            end = time.monotonic() + DEADLINE
            while await (client := Client()).asks(here, there.channel) is RelayResult.OWNER_GONE:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)
            assert (client.status, client.body) == (200, b"hello")

    run(work)


def test_a_worker_that_only_receives_pings_the_one_that_sends_to_it(impatient: None) -> None:
    """Otherwise the sender would take it to be gone, and stop."""
    pieces = 40

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(1.5 * 2 * timeouts.PEER / pieces)
        await send({"type": "http.response.body", "body": b""})

    async def work() -> None:
        layer = FaultyLayer()
        async with two(layer, serve) as (here, there):
            client = Client()
            await client.asks(here, there.channel)
            assert (client.status, client.body, client.is_over) == (200, b"x" * pieces, True)
            assert "ping" in layer.sent

    run(work)


def test_quick_calls_are_one_message_each_way_and_no_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PING_INTERVAL", 0.5)

    async def work() -> None:
        layer = FaultyLayer()
        async with two(layer) as (here, there):
            calls = 0
            end = time.monotonic() + 2.5 * timeouts.PING_INTERVAL
            while time.monotonic() < end:
                client = Client()
                await client.asks(here, there.channel)
                assert (client.status, client.body, client.is_over) == (200, b"hello", True)
                calls += 1
        assert layer.sent == ["request", "response"] * calls

    run(work)


def test_the_headers_of_a_relayed_stream_come_before_its_first_event() -> None:
    async def work() -> None:
        may_end = asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            await may_end.wait()
            await send({"type": "http.response.body", "body": b"event"})

        async with two(FaultyLayer(), serve) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            with anyio.fail_after(DEADLINE):
                while not client.status:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
            may_end.set()
            await asking
            assert client.body == b"event"

    run(work)


def test_a_worker_that_closes_is_gone_at_once() -> None:
    async def work() -> None:
        layer = FaultyLayer()
        async with AsyncExitStack() as stack:
            here, there = Relay(layer, echo, "/mcp", 1000), Relay(layer, echo, "/mcp", 1000)
            await stack.enter_async_context(here.open())
            async with there.open():
                channel = there.channel
                client = Client()
                await client.asks(here, channel)
                assert client.status == 200
            layer.sent.clear()
            with anyio.fail_after(1):
                assert await Client().asks(here, channel) is RelayResult.OWNER_GONE

    run(work)


def test_a_request_after_one_that_was_given_up_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "PEER", 0.3)
    monkeypatch.setattr(Messaging, "watch", lambda self: None)

    async def work() -> None:
        layer = FaultyLayer()
        is_full = True

        def be_full(kinds: list[str]) -> int:
            if is_full and kinds != ["request"]:
                raise ChannelFull
            return 1

        layer.fault = be_full
        served = 0
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            nonlocal served
            served += 1
            begun.set()
            await echo(scope, receive, send)
            given_up.set()

        async with two(layer, serve) as (here, there):
            client = Client()
            asking = asyncio.ensure_future(client.asks(here, there.channel))
            await begun.wait()
            client.left.set()
            await asking
            await given_up.wait()
            await asyncio.sleep(0.5)  # the one that asked has given up telling that its client has left
            is_full = False
            client = Client()
            await client.asks(here, there.channel)
            assert (client.status, client.body, served) == (200, b"hello", 2)

    run(work)


def test_a_start_that_is_cancelled_while_the_layer_hangs_leaves_no_task_behind() -> None:
    async def work() -> None:
        class HangingLayer(InMemoryChannelLayer):
            async def group_add(self, group: str, channel: str) -> None:
                await asyncio.Event().wait()

        before = asyncio.all_tasks()
        with anyio.move_on_after(0.1):
            async with Relay(HangingLayer(), echo, "/mcp", 1000).open():
                pytest.fail("it has not joined")
        assert asyncio.all_tasks() == before

    run(work)


def test_a_request_that_arrives_too_late_is_not_served_and_a_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with two(FaultyLayer()) as (here, there):
            monkeypatch.setattr(timeouts, "SEND", -10)
            client = Client()
            await client.asks(here, there.channel)
            assert client.status == 503

    run(work)
    assert "Check that the clocks of all machines agree" in caplog.text


def test_a_relayed_request_without_its_user_is_refused_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A user that is not a model's cannot be loaded in another worker. Without it, the request would be anonymous."""
    manager = StreamableHTTPSessionManager(LowLevelServer("x"))

    async def work() -> None:
        async with two(InMemoryChannelLayer(), Sessions(manager, Limits(1, 1, None)).serve_relayed) as (here, there):
            for _ in range(2):
                client = Client()
                await client.asks(here, there.channel, user=SimpleUser("ann"))
                assert client.status == 500

    run(work)
    assert caplog.text.count("A relayed request lacks the scope entries 'user'") == 1


def test_a_layer_whose_receive_times_out_at_once_does_not_block_the_event_loop() -> None:
    class ImpatientLayer(InMemoryChannelLayer):
        attempts = 0

        async def receive(self, channel: str) -> Message:
            self.attempts += 1
            raise TimeoutError

    async def work() -> None:
        layer = ImpatientLayer()
        async with Relay(layer, echo, "/mcp", 1000).open():
            await asyncio.sleep(3 * timeouts.RECEIVE_RETRY)
        assert 1 < layer.attempts < 5

    run(work)


def test_a_layer_that_hangs_delays_the_start_and_the_end_of_many_handlers_only_once() -> None:
    class HangingLayer(InMemoryChannelLayer):
        hangs = True

        async def group_add(self, group: str, channel: str) -> None:
            if self.hangs:
                await asyncio.Event().wait()
            await super().group_add(group, channel)

        async def group_discard(self, group: str, channel: str) -> None:
            await asyncio.Event().wait()

    async def handlers(layer: InMemoryChannelLayer) -> float:
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(Relay(layer, echo, "/mcp", 1000).open())
        return time.monotonic() - started

    async def work() -> None:
        layer = HangingLayer()
        assert await handlers(layer) < 4
        layer.hangs = False
        assert await handlers(layer) < 4

    run(work)
