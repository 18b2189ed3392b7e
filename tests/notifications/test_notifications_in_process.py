"""Notifications within one process: users, slow clients, limits, transactions, models, the channel layer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import unittest
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread
from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp.server.subscriptions import InMemorySubscriptionBus

from tests.support import in_django
from tests.support.harness import DEADLINE, wait_until
from tests.support.private_redis import Redis

from django.contrib.auth.models import Permission, User  # isort: skip - after Django is set up
from django.contrib.contenttypes.models import ContentType  # isort: skip
from django.core.serializers import deserialize  # isort: skip
from django.db import connection, transaction  # isort: skip
from django.test.utils import CaptureQueriesContext  # isort: skip
from django.db.models.signals import post_delete, post_save, pre_save  # isort: skip
from django.test import TestCase, override_settings  # isort: skip

from mcp_serving import (  # isort: skip
    MCPServer,
    anotify_resource_updated,
    notify_on_change,
    notify_prompts_changed,
    notify_resource_updated,
    notify_resources_changed,
    notify_tools_changed,
)
from mcp_serving import channel_layer  # isort: skip
from mcp_serving.notifications import receive as receiving  # isort: skip
from mcp_serving.notifications.publish import (  # isort: skip
    local_buses,
    notification,
    send_to_other_processes,
)
from mcp_serving.testing import client  # isort: skip
from mcp_serving.notifications import subscription_limits  # isort: skip

pytestmark = [
    pytest.mark.usefixtures("users_of_its_own"),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

FENCE = "open://fence"


def made_server(**options: Any) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("in-process", **options)

    @server.resource("open://{name}")
    def opened(name: str) -> str:
        return name

    @server.resource("secret://{name}", permission="auth.view_user")
    def secret(name: str) -> str:
        return name

    @server.tool()
    async def tell(ctx: Context, uri: str) -> None:
        await ctx.notify_resource_updated(uri)

    return server


class Heard:
    """What an older client is sent, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._changed = anyio.Event()

    async def __call__(self, message: Any) -> None:
        params = getattr(message, "params", None)
        self.names.append(getattr(params, "uri", None) or message.method)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, name: str) -> list[str]:
        with anyio.fail_after(DEADLINE):
            while name not in self.names:
                await self._changed.wait()
        return self.names[: self.names.index(name)]


def run(work: Any) -> None:
    anyio.run(work)


def test_an_older_session_cannot_tell_a_hidden_resource_from_a_missing_one_by_subscribing() -> None:
    server = made_server()

    async def refusal(session: Any, uri: str) -> str:
        with pytest.raises(MCPError) as raised:
            await session.subscribe_resource(uri)
        assert raised.value.error.data == {"uri": uri}
        return f"{raised.value.error.code} {raised.value.error.message.replace(uri, 'URI')}"

    async def work() -> None:
        heard = {name: Heard() for name in ("ann", "clerk")}
        async with (
            client(server, user=in_django_user["ann"], mode="legacy", message_handler=heard["ann"]) as ann,
            client(server, user=in_django_user["clerk"], mode="legacy", message_handler=heard["clerk"]) as clerk,
        ):
            assert await refusal(ann, "secret://7") == await refusal(ann, "nowhere://7")
            await clerk.subscribe_resource("secret://7")
            for session in (ann, clerk):
                await session.subscribe_resource(FENCE)
            notify_resource_updated("secret://7")
            await ann.call_tool("tell", {"uri": "secret://7"})
            notify_resource_updated(FENCE)
            assert await heard["ann"].until(FENCE) == []
            assert set(await heard["clerk"].until(FENCE)) == {"secret://7"}

    in_django_user = {name: in_django.user(name) for name in ("ann", "clerk")}
    run(work)


def test_an_older_client_that_does_not_read_delays_no_other_and_its_notifications_do_not_pile_up() -> None:
    server = made_server()
    uris = [f"open://{number}" for number in range(50)]

    async def work() -> None:
        reads_again = anyio.Event()
        slow_heard, heard = Heard(), Heard()

        async def reads_later(message: Any) -> None:
            await reads_again.wait()
            await slow_heard(message)

        async with (
            client(server, mode="legacy", message_handler=reads_later) as slow,
            client(server, mode="legacy", message_handler=heard) as other,
        ):
            for session in (slow, other):
                for uri in [*uris, FENCE]:
                    await session.subscribe_resource(uri)
            for _ in range(100):
                for uri in uris:
                    notify_resource_updated(uri)
                await anyio.lowlevel.checkpoint()
            notify_resource_updated(FENCE)
            assert set(await heard.until(FENCE)) == set(uris)
            reads_again.set()
            assert set(await slow_heard.until(FENCE)) == set(uris)
            assert len(slow_heard.names) < 10 * len(uris)  # of 100 notifications of each

    run(work)


def test_the_subscriptions_of_a_session_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_limits, "MAX_URIS", 2)

    async def work() -> None:
        async with client(made_server(), mode="legacy") as session:
            for uri in ("open://1", "open://2", "open://2"):
                await session.subscribe_resource(uri)
            with pytest.raises(MCPError, match="Subscription limit reached"):
                await session.subscribe_resource("open://3")
            for _ in range(2):
                await session.unsubscribe_resource("open://1")
            await session.subscribe_resource("open://3")
            with pytest.raises(MCPError, match="Unknown resource"):
                await session.subscribe_resource("open://" + 3000 * "3")

    run(work)


def test_the_subscriptions_of_one_user_are_limited_in_all_sessions_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wanted(*uris: Any) -> dict[str, Any]:
        return {"notifications": {"resourceSubscriptions": list(uris)}}

    monkeypatch.setattr(subscription_limits, "MAX_SIZE_PER_USER", 3 * 600)
    with subscription_limits.subscribed_to(wanted("open://1", "open://2", "open://2"), "ann"):
        session = subscription_limits.SubscribedUris("ann")
        for _ in range(2):
            session.add("open://3")
        with pytest.raises(MCPError, match="Subscription limit reached"):
            session.add("open://4")
        with (
            pytest.raises(MCPError, match="Subscription limit reached"),
            subscription_limits.subscribed_to(wanted("open://4"), "ann"),
        ):
            pass
        with subscription_limits.subscribed_to(wanted("open://1", "open://2", "open://3"), "bob"):
            pass
        session.discard("open://3")
        session.add("open://4")
        session.clear()
    with subscription_limits.subscribed_to(wanted("open://1", "open://2", "open://3"), "ann"):
        pass
    for nothing in (None, {}, {"notifications": []}, wanted(), wanted(7, None)):
        with subscription_limits.subscribed_to(nothing, "ann"):
            pass
    assert not subscription_limits._sizes


def test_the_subscriptions_of_a_session_count_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_limits, "MAX_SIZE_PER_USER", 600)
    server = made_server()

    async def work() -> None:
        async with client(server, mode="legacy") as other:
            async with client(server, mode="legacy") as session:
                await session.subscribe_resource("open://1")
                with pytest.raises(MCPError, match="Subscription limit reached"):
                    await other.subscribe_resource("open://2")
            await other.subscribe_resource("open://2")

    run(work)


WRITTEN = ["open://O'Brien%20(new)!", "open://O%27Brien%20%28new%29%21", "open://O'Brien%20(new)%21"]


def test_each_client_is_notified_of_a_uri_as_it_has_written_it() -> None:
    """TypeScript's encodeURIComponent, Python's quote() and others percent-encode different characters."""

    async def work() -> None:
        heard = Heard()
        async with (
            client(made_server(), mode="legacy", message_handler=heard) as older,
            client(made_server()) as modern,
            modern.listen(resource_subscriptions=[*WRITTEN[:2], FENCE]) as stream,
        ):
            for uri in (*WRITTEN[:2], FENCE):
                await older.subscribe_resource(uri)
            notify_resource_updated(WRITTEN[2])
            notify_resource_updated("open://O'Brien")
            notify_resource_updated(FENCE)
            assert sorted(await heard.until(FENCE)) == sorted(WRITTEN[:2])
            with anyio.fail_after(DEADLINE):
                changes = [(await anext(aiter(stream))).uri for _ in range(3)]  # type: ignore[union-attr]
            assert sorted(changes) == sorted([*WRITTEN[:2], FENCE])
            for uri in WRITTEN[:2]:
                await older.unsubscribe_resource(uri)
            heard.names.clear()
            for uri in (*WRITTEN, FENCE):
                notify_resource_updated(uri)
            assert await heard.until(FENCE) == []

    run(work)


def test_a_path_with_slashes_is_one_variable() -> None:
    server = made_server()

    @server.resource("files://{+path}")
    def file(path: str) -> str:
        return path

    async def work() -> None:
        heard = Heard()
        async with client(server, mode="legacy", message_handler=heard) as session:
            for uri in ("files://a/b%20c", FENCE):
                await session.subscribe_resource(uri)
            for uri in ("files://a/b", "files://a%2Fb%20c", FENCE):
                notify_resource_updated(uri)
            assert await heard.until(FENCE) == ["files://a/b%20c"]

    run(work)


def test_older_sessions_are_notified_of_changed_lists_without_a_subscription() -> None:
    async def work() -> None:
        heard = Heard()
        async with client(made_server(), mode="legacy", message_handler=heard) as session:
            await session.list_tools()
            for notify in (notify_tools_changed, notify_prompts_changed, notify_resources_changed):
                notify()
            kinds = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
            assert [*await heard.until(kinds[-1]), kinds[-1]] == kinds

    run(work)


def test_a_server_with_its_own_bus_gets_only_the_notifications_of_that_bus() -> None:
    server = made_server(subscriptions=InMemorySubscriptionBus())

    async def work() -> None:
        heard = Heard()
        async with client(server, mode="legacy", message_handler=heard) as session:
            for uri in ("open://1", "open://2", FENCE):
                await session.subscribe_resource(uri)
            notify_resource_updated("open://1")
            for uri in ("open://2", FENCE):
                await session.call_tool("tell", {"uri": uri})
            assert await heard.until(FENCE) == ["open://2"]

    run(work)


def test_a_server_without_subscriptions_announces_none() -> None:
    async def work() -> None:
        async with client(made_server(subscriptions=False), mode="legacy") as session:
            assert session.server_capabilities is not None
            assert not session.server_capabilities.resources.subscribe  # type: ignore[union-attr]
            with pytest.raises(MCPError, match="Method not found"):
                await session.subscribe_resource("open://1")

    run(work)


def test_notifications_can_be_sent_from_any_thread() -> None:
    async def work() -> None:
        heard = Heard()
        async with (
            client(made_server(), mode="legacy", message_handler=heard) as older,
            client(made_server()) as modern,
            modern.listen(resource_subscriptions=[FENCE]) as subscription,
        ):
            for uri in ("open://1", "open://2", FENCE):
                await older.subscribe_resource(uri)
            await to_thread.run_sync(notify_resource_updated, "open://1")
            thread = threading.Thread(target=anyio.run, args=(anotify_resource_updated, "open://2"))
            thread.start()
            await to_thread.run_sync(thread.join)
            notify_resource_updated(FENCE)
            assert await heard.until(FENCE) == ["open://1", "open://2"]
            with anyio.fail_after(DEADLINE):
                assert (await anext(aiter(subscription))).uri == FENCE  # type: ignore[union-attr]

    run(work)


# Models


@pytest.fixture
def connected() -> Iterator[None]:
    """Undoes what a test has connected."""
    signals = pre_save, post_save, post_delete
    before = [list(signal.receivers) for signal in signals]
    yield
    for signal, receivers in zip(signals, before, strict=True):
        signal.receivers[:] = receivers
        signal.sender_receivers_cache.clear()


@pytest.mark.parametrize(
    ("uri", "wrong"),
    [
        ("users://{nickname}", "'users://{nickname}' has {nickname}, but auth.User has no 'nickname'."),
        ("users://{pk}/{nickname}", "auth.User has no 'nickname'."),
        ("permissions://{content_type.nickname}", "contenttypes.ContentType has no 'nickname'."),
        ("users://{}", "which is not the name of an attribute"),
        ("users://{pk!r}", "which is not the name of an attribute"),
        ("users://{pk", "has an unmatched brace; an attribute is written as {number}."),
    ],
)
def test_a_template_that_does_not_fit_the_model_is_an_error(uri: str, wrong: str, connected: None) -> None:
    model = Permission if "permissions" in uri else User
    before = len(post_save.receivers)
    with pytest.raises(ValueError) as raised:
        notify_on_change(model, uri)
    assert wrong in str(raised.value)
    assert len(post_save.receivers) == before


def told_in(work: Any) -> list[str]:
    """What a listener hears of ``work``, which runs in Django's TestCase: nothing is ever committed there."""
    told: list[str] = []

    class Bus:
        def deliver(self, change: dict[str, Any]) -> None:
            told.append(change["uri"] or change["kind"])

    bus = Bus()
    local_buses.add(bus)

    class Case(TestCase):
        def runTest(self) -> None:  # noqa: N802
            work(self)

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    return told


def test_in_a_testcase_notifications_wait_for_the_captured_commit() -> None:
    def work(case: TestCase) -> None:
        notify_resource_updated("open://never")
        with case.captureOnCommitCallbacks(execute=True) as callbacks:
            notify_resource_updated("open://1")
        assert len(callbacks) == 1

    assert told_in(work) == ["open://1"]


def test_a_savepoint_that_is_rolled_back_sends_no_notifications() -> None:
    def work(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True):
            notify_resource_updated("open://1")
            with transaction.atomic():
                notify_resource_updated("open://2")
                transaction.set_rollback(True)

    assert told_in(work) == ["open://1"]


def test_a_model_is_connected_once_and_its_template_is_filled_in(connected: None) -> None:
    for _ in range(2):
        notify_on_change(User, "users://{username}/{pk}", lists=True)
    notify_on_change(User, "users://all")

    def work(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True):
            user = User.objects.create(username="a/b ü")
            user.save()
            User.objects.filter(pk=user.pk).update(first_name="nobody is told")
            uris.append(f"users://a%2Fb%20%C3%BC/{user.pk}")
            user.delete()

    uris: list[str] = []
    told = told_in(work)
    assert sorted(told) == sorted([*uris * 3, *["users://all"] * 3, *["resources_changed"] * 2])


def test_a_save_that_changes_the_uri_notifies_of_the_old_one_and_of_the_new_one(connected: None) -> None:
    notify_on_change(User, "users://{username}")
    notify_on_change(Permission, "types://{content_type.model}")

    def work(case: TestCase) -> None:
        user = User.objects.create(username="old")
        permission = Permission.objects.order_by("content_type__model").first()
        assert permission is not None
        types.append(f"types://{permission.content_type.model}")
        with case.captureOnCommitCallbacks(execute=True):
            user.username = "new"
            user.save()
            user.save()
            user.username = "newest"
            user.save(update_fields=["username"])
            permission.content_type = ContentType.objects.get_for_model(User)
            permission.codename = "moved"
            permission.save()

    types: list[str] = []
    told = told_in(work)
    assert Counter(told) == Counter(
        ["users://new", "users://old", "users://new", "users://newest", "users://new", "types://user", *types]
    )


def test_a_save_costs_one_query_more_only_where_it_may_change_the_uri(connected: None) -> None:
    notify_on_change(User, "users://{pk}")
    notify_on_change(User, "users://all")

    def saved(case: TestCase) -> None:
        user = User.objects.create(username="carol")
        with case.assertNumQueries(1):
            user.save(update_fields=["first_name"])
        with case.assertNumQueries(1):
            user.save()

    def saved_with_a_name(case: TestCase) -> None:
        user = User.objects.create(username="carol")
        with case.assertNumQueries(1):
            user.save(update_fields=["first_name"])
        with case.assertNumQueries(2):
            user.save()
        with case.assertNumQueries(1):
            User.objects.create(username="dave")

    told_in(saved)
    notify_on_change(User, "users://{username}")
    told_in(saved_with_a_name)


def test_objects_that_loaddata_loads_are_neither_queried_nor_notified(
    connected: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notify_on_change(Permission, "types://{content_type.model}/{codename}", lists=True)
    fixture = tmp_path / "permissions.json"
    fields = {"name": "Can do", "content_type": 10_000, "codename": "do"}  # a type that is not loaded yet
    fixture.write_text(json.dumps([{"model": "auth.permission", "pk": 10_000, "fields": fields}]))

    def work(case: TestCase) -> None:
        content_type = {"app_label": "later", "model": "later"}
        with case.captureOnCommitCallbacks(execute=True), CaptureQueriesContext(connection) as queries:
            for _ in range(2):
                (loaded,) = deserialize("json", fixture.read_text())
                loaded.save()
            assert not [query for query in queries.captured_queries if "SELECT" in query["sql"]]
        ContentType.objects.create(pk=10_000, **content_type)

    assert told_in(work) == []
    assert caplog.records == []


def test_a_second_call_may_add_the_lists(connected: None) -> None:
    for lists in (False, True, False):
        notify_on_change(User, "users://with-lists", lists=lists)

    def work(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True):
            User.objects.create(username="carol")

    assert told_in(work) == ["users://with-lists", "resources_changed"]


def test_a_reserved_character_is_kept_in_a_variable_with_a_plus(connected: None) -> None:
    notify_on_change(User, "files://{+first_name}/{username}")

    def work(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True):
            User.objects.create(username="a/b", first_name="a/b c")

    assert told_in(work) == ["files://a/b%20c/a%2Fb"]


def test_a_template_that_fails_for_an_object_does_not_prevent_the_save(
    connected: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(User, "unlucky", property(lambda self: 1 / 0), raising=False)
    notify_on_change(User, "users://{unlucky}")

    def work(case: TestCase) -> None:
        with case.captureOnCommitCallbacks(execute=True):
            User.objects.create(username="saved")
        assert User.objects.filter(username="saved").exists()

    assert told_in(work) == []
    (record,) = [each for each in caplog.records if each.name == "mcp_serving.notifications.model_signals"]
    assert record.levelno == logging.WARNING
    assert (
        record.getMessage()
        == "Clients were not notified of a change of auth.User (ZeroDivisionError: division by zero)."
    )


class BrokenLayer:
    """A channel layer with a wrong setting."""

    def __init__(self) -> None:
        raise ValueError("of a setting,\nin two lines")


def test_a_layer_that_cannot_be_made_is_one_line_in_the_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": f"{__name__}.BrokenLayer"}}):
        notify_resource_updated("open://1")
        run(partial(anotify_resource_updated, "open://1"))
    assert {record.getMessage() for record in caplog.records} == {
        "Clients were not notified of a change (ValueError: of a setting, in two lines)."
    }


def test_a_task_that_outlives_its_call_can_send_notifications() -> None:
    server = made_server()
    left = anyio.Event()
    tasks = []

    @server.tool()
    async def begin() -> int:
        async def later() -> None:
            await left.wait()
            await anotify_resource_updated(FENCE)

        tasks.append(asyncio.create_task(later()))
        return await User.objects.acount()

    async def work() -> None:
        heard = Heard()
        async with client(server, mode="legacy", message_handler=heard) as session:
            await session.subscribe_resource(FENCE)
            await session.call_tool("begin", {})
            left.set()
            await heard.until(FENCE)

    run(work)


# The channel layer


CORE, PUBSUB = "channels_redis.core.RedisChannelLayer", "channels_redis.pubsub.RedisPubSubChannelLayer"


@pytest.fixture(params=[CORE, PUBSUB])
def layer(request: pytest.FixtureRequest, redis: Redis) -> Iterator[Any]:
    """The layer of the process, with another prefix for each test."""
    with layer_of(request.param, redis, prefix=request.node.name[-50:]) as made:
        yield made


@contextmanager
def layer_of(backend: str, redis: Redis, **config: Any) -> Iterator[Any]:
    config = {"hosts": [redis.url], **config}
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": backend, "CONFIG": config}}):
        yield channel_layer.channel_layer()


class Told:
    """A bus, and what it has heard."""

    def __init__(self) -> None:
        self.names: list[str] = []
        local_buses.add(self)

    def deliver(self, change: dict[str, Any]) -> None:
        self.names.append(change["uri"])

    async def until(self, name: str) -> list[str]:
        await to_thread.run_sync(wait_until, lambda: name in self.names, name)
        return self.names[: self.names.index(name)]


async def sent_by_another_process(layer: Any, uri: str) -> dict[str, Any]:
    event = notification("resource_updated", uri=uri)
    await layer.group_send(receiving.GROUP, event)
    return event


@pytest.mark.process
def test_consumers_of_channels_and_notifications_do_not_wait_for_each_other(layer: Any) -> None:
    async def work() -> None:
        told = Told()
        async with receiving.receive_from_other_processes():
            channel = await layer.new_channel()
            for number in range(3):
                consumer = asyncio.create_task(layer.receive(channel))
                await anyio.sleep(0.02)  # both are waiting now, one of them for the other's lock
                with anyio.fail_after(DEADLINE):
                    await layer.send(channel, {"type": "chat"})
                    await consumer
                consumer = asyncio.create_task(layer.receive(channel))
                await anyio.sleep(0.02)
                await sent_by_another_process(layer, f"open://{number}")
                await told.until(f"open://{number}")
                await layer.send(channel, {"type": "chat"})
                await consumer

    run(work)


@pytest.mark.process
def test_a_notification_that_a_layer_delivers_twice_reaches_subscribers_once(layer: Any) -> None:
    async def work() -> None:
        told = Told()
        async with receiving.receive_from_other_processes():
            event = await sent_by_another_process(layer, "open://1")
            await layer.group_send(receiving.GROUP, event)
            await sent_by_another_process(layer, FENCE)
            assert await told.until(FENCE) == ["open://1"]

    run(work)


@pytest.mark.process
@pytest.mark.parametrize("layer", [CORE], indirect=True)
def test_a_receive_that_times_out_is_not_an_outage(
    layer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with channels_redis and redis-py from 8.0 on, after five seconds."""
    monkeypatch.setattr(receiving, "WORKING_SECONDS", 0.05)
    receive, given_up = layer.receive, threading.Event()

    async def receive_for_a_while(channel: str) -> Any:
        with anyio.move_on_after(0.1):
            return await receive(channel)
        given_up.set()
        raise TimeoutError("Timeout reading")

    monkeypatch.setattr(layer, "receive", receive_for_a_while)

    async def work() -> None:
        told = Told()
        async with receiving.receive_from_other_processes():
            for _ in range(2):
                given_up.clear()
                await to_thread.run_sync(given_up.wait, DEADLINE)
            await sent_by_another_process(layer, FENCE)
            await told.until(FENCE)

    run(work)
    assert caplog.records == []


@pytest.mark.process
@pytest.mark.parametrize("layer", [CORE], indirect=True)
def test_a_server_that_ends_leaves_the_group(layer: Any, redis: Redis) -> None:
    group = f"{layer.prefix}:group:{receiving.GROUP}"

    async def work() -> None:
        async with receiving.receive_from_other_processes():
            with redis.client() as client:
                assert client.zcard(group) == 1

    run(work)
    with redis.client() as client:
        assert client.zcard(group) == 0


@pytest.mark.process
def test_a_process_that_the_layer_has_forgotten_joins_the_group_again(
    layer: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "REJOIN_INTERVAL", 0.1)

    async def work() -> None:
        told = Told()
        async with receiving.receive_from_other_processes():
            with redis.client() as client:
                client.flushall()
            with anyio.fail_after(DEADLINE):
                while FENCE not in told.names:
                    await sent_by_another_process(layer, FENCE)
                    await anyio.sleep(0.05)

    run(work)


@pytest.mark.process
@pytest.mark.parametrize("backend", [CORE, PUBSUB])
def test_each_layer_of_channels_redis_recovers_from_a_restart(
    backend: str, redis_of_its_own: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiving, "REJOIN_INTERVAL", 0.2)

    async def work(layer: Any) -> None:
        told = Told()
        async with receiving.receive_from_other_processes():
            await sent_by_another_process(layer, "open://1")
            assert await told.until("open://1") == []
            redis_of_its_own.stop()
            await send_to_other_processes(notification("resource_updated", uri="open://lost"))
            assert not channel_layer.health.available
            redis_of_its_own.start()
            with anyio.fail_after(DEADLINE):
                while "open://2" not in told.names:
                    await send_to_other_processes(notification("resource_updated", uri="open://2"))
                    await anyio.sleep(0.05)
        assert told.names.count("open://1") == 1
        assert "open://lost" not in told.names

    with layer_of(backend, redis_of_its_own) as layer:
        run(partial(work, layer))
    ours = [record.getMessage()[:32] for record in caplog.records if record.name == "mcp_serving.channel_layer"]
    assert ours == ["The channel layer cannot be used", "The channel layer can be used ag"]


@pytest.mark.process
def test_two_event_loops_of_a_process_both_get_notifications(
    layer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second receives by itself once the first has ended."""
    monkeypatch.setattr(receiving, "TAKE_OVER_INTERVAL", 0.05)
    told, ready, first_may_end = Told(), threading.Barrier(3), threading.Event()

    async def receive(until: threading.Event) -> None:
        async with receiving.receive_from_other_processes():
            await to_thread.run_sync(ready.wait, DEADLINE)
            await to_thread.run_sync(until.wait, DEADLINE)

    async def send() -> None:
        await sent_by_another_process(layer, "open://1")
        assert await told.until("open://1") == []
        first_may_end.set()
        with anyio.fail_after(DEADLINE):
            while "open://2" not in told.names:
                await sent_by_another_process(layer, "open://2")
                await anyio.sleep(0.05)

    all_may_end = threading.Event()
    threads = [threading.Thread(target=anyio.run, args=(receive, until)) for until in (first_may_end, all_may_end)]
    for thread in threads:
        thread.start()
    ready.wait(DEADLINE)
    run(send)
    all_may_end.set()
    for thread in threads:
        thread.join()
    assert caplog.records == []
