"""The channel layer of a project: which one it is, whether it answers, and the undocumented names that it needs."""

from __future__ import annotations

import asyncio
import logging
import re
import sys

import pytest
from channels import DEFAULT_CHANNEL_LAYER
from channels.layers import InMemoryChannelLayer, channel_layers
from channels_redis.core import RedisChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer
from django.test import override_settings
from redis.asyncio import ConnectionPool

from mcp_serving import channel_layer, conf, notify_resource_updated
from mcp_serving.channel_layer import LayerHealth
from tests.support.harness import DEADLINE, ROOT
from tests.support.private_redis import Redis

CORE = "channels_redis.core.RedisChannelLayer"

# Which layer it is


def test_a_layer_whose_package_is_missing_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "channels_redis":
                raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "channels_redis"]:
        monkeypatch.delitem(sys.modules, name)
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": CORE}}):
        problem = channel_layer.problem()
    assert problem is not None
    assert problem.startswith("CHANNEL_LAYERS['default']: ")
    assert problem.endswith("Install it with: pip install 'mcp-serving[redis]'.")


def test_a_layer_that_reaches_no_other_process_is_not_used() -> None:
    in_memory = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    for configured in (in_memory, {}):
        with override_settings(CHANNEL_LAYERS=configured):
            assert channel_layer.shared_layer() is None
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": CORE}}):
        assert channel_layer.shared_layer() is not None


@pytest.mark.process
def test_a_thousand_notifications_validate_the_settings_once_and_again_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validated = []
    problems = conf.problems

    def counted() -> list[str]:
        validated.append(True)
        return problems()

    monkeypatch.setattr(conf, "problems", counted)
    layers = {name: {"BACKEND": "channels.layers.InMemoryChannelLayer"} for name in ("default", "other")}
    with override_settings(CHANNEL_LAYERS=layers):
        for _ in range(1000):
            notify_resource_updated("open://1")
        assert len(validated) == 1
        assert channel_layer.layer_name() == "default"
        with override_settings(MCP_SERVING={"CHANNEL_LAYER": "other"}):
            assert channel_layer.layer_name() == "other"
        with override_settings(CHANNEL_LAYERS={}):
            assert channel_layer.layer_name() is None
        assert channel_layer.layer_name() == "default"


@pytest.mark.process
def test_with_several_hosts_a_channel_receives_at_the_host_to_which_others_send(
    redis: Redis, redis_of_its_own: Redis
) -> None:
    """channels_redis loses the messages for some names of channels: see issue 1492 of Channels."""

    async def work() -> None:
        for number in range(10):  # each layer has a name of its own, from which the hosts are chosen
            layer = RedisChannelLayer(hosts=[redis.url, redis_of_its_own.url])
            channel = await channel_layer.new_channel(layer)
            await layer.send(channel, {"number": number})
            async with asyncio.timeout(DEADLINE):
                assert await layer.receive(channel) == {"number": number}
            await layer.close_pools()

    asyncio.run(work())


# Whether it answers


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    health = LayerHealth("Away (%s).", "Back.")
    health.record_success()
    for _ in range(2):
        for _ in range(3):
            health.record_failure(OSError("no route\nto host"))
            assert not health.available
        for _ in range(3):
            health.record_success()
            assert health.available
    assert [record.getMessage() for record in caplog.records] == ["Away (OSError: no route to host).", "Back."] * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert health.outages == 2


def test_during_an_outage_one_caller_per_pause_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    health = LayerHealth(pause=2.0)
    assert [health.may_try() for _ in range(3)] == [True] * 3
    health.record_failure(OSError())
    assert not health.may_try()
    now = 102.0
    assert [health.may_try() for _ in range(3)] == [True, False, False]
    now = 104.0
    assert health.may_try()
    health.record_success()
    assert [health.may_try() for _ in range(3)] == [True] * 3


# Undocumented names: each test fails when the name moves


def test_channels_has_a_mapping_of_its_layers_that_knows_the_configured_names() -> None:
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}):
        assert DEFAULT_CHANNEL_LAYER == "default"
        assert "default" in channel_layers
        assert "other" not in channel_layers
        assert isinstance(channel_layers["default"], InMemoryChannelLayer)


def test_channels_raises_the_error_of_a_missing_backend_while_it_handles_the_import_error() -> None:
    with (
        override_settings(CHANNEL_LAYERS={"default": {"BACKEND": "nowhere.Layer"}}),
        pytest.raises(Exception) as raised,
    ):
        channel_layers["default"]
    assert isinstance(raised.value.__context__, ImportError)
    assert raised.value.__context__.name == "nowhere"


def test_channels_redis_chooses_a_host_with_consistent_hash() -> None:
    layer = RedisChannelLayer(hosts=["redis://one", "redis://two"])
    assert {layer.consistent_hash(f"channel-{number}") for number in range(50)} == {0, 1}


def test_channels_redis_receives_on_the_non_local_name_of_a_channel() -> None:
    layer = RedisChannelLayer()
    assert layer.non_local_name("specific.process!channel") == "specific.process!"


def test_the_pubsub_layer_of_channels_redis_has_no_hosts_to_choose_from_names() -> None:
    async def work() -> None:
        assert not hasattr(RedisPubSubChannelLayer(), "consistent_hash")

    asyncio.run(work())


def test_the_core_layer_of_channels_redis_has_this_path() -> None:
    assert channel_layer.stores_messages(RedisChannelLayer())
    assert not channel_layer.stores_messages(InMemoryChannelLayer())


def test_redis_checks_the_options_in_a_url_when_a_pool_makes_a_connection() -> None:
    pool = ConnectionPool.from_url("redis://localhost/0?unknown=1")
    with pytest.raises(TypeError):
        pool.make_connection()


def test_one_module_uses_undocumented_names_of_channels() -> None:
    names = r"consistent_hash|non_local_name|channel_layers|DEFAULT_CHANNEL_LAYER|^ *(?:from|import) channels_redis"
    for path in (ROOT / "mcp_serving").rglob("*.py"):
        code = re.sub(r'"""(?s:.*?)"""|#.*', "", path.read_text())
        assert path.name == "channel_layer.py" or re.findall(names, code, re.MULTILINE) == [], path
