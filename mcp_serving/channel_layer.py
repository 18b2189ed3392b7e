"""The channel layer that the processes of a project share, and whether it answers.

This is the only module that uses undocumented names of Channels and channels_redis.
tests/test_channel_layer.py has a test for each of them, which fails when the name moves.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from channels import DEFAULT_CHANNEL_LAYER
from channels.layers import InMemoryChannelLayer, channel_layers

from mcp_serving import conf, loading

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds after a failure in which no notification is sent: a loop over many changes must not wait for each one."""


class LayerHealth:
    """Whether a channel layer, or another backend that several processes share, answers.

    It logs one line when an outage begins, and one line when it ends.

    Args:
        failed: the log line for the beginning of an outage. ``%s`` is replaced by the error.
        recovered: the log line for its end.
        pause: seconds between two attempts during an outage; see ``may_try``.
    """

    def __init__(self, failed: str = "", recovered: str = "", *, pause: float = 0.0) -> None:
        self.outages = 0
        """How many outages have begun."""
        self.reason = ""
        """The last error of the current outage, in one line. Empty while the backend answers."""
        self._failed = failed
        self._recovered = recovered
        self._pause = pause
        self._paused_until = 0.0

    @property
    def available(self) -> bool:
        """Whether the last attempt to use the backend succeeded."""
        return not self.reason

    def may_try(self) -> bool:
        """Whether the caller may use the backend now.

        During an outage, one caller in every ``pause`` seconds may. The others would only wait for its timeout.
        """
        now = time.monotonic()
        if self.available:
            return True
        if now < self._paused_until:
            return False
        self._paused_until = now + self._pause
        return True

    def record_failure(self, error: Exception) -> None:
        """Note that the backend did not answer."""
        begins = self.available
        self.reason = loading.in_one_line(error)
        self._paused_until = time.monotonic() + self._pause
        if begins:
            self.outages += 1
            if self._failed:
                logger.warning(self._failed, self.reason)

    def record_success(self) -> None:
        """Note that the backend answered."""
        if not self.available:
            self.reason = ""
            if self._recovered:
                logger.warning(self._recovered)


health = LayerHealth(
    "The channel layer cannot be used (%s). Until it can, notifications reach no other process, and requests for "
    "sessions in other workers get 503.",
    "The channel layer can be used again.",
    pause=PAUSE,
)
"""Of the project's channel layer, for everything in this process that uses it."""


def layer_name() -> str | None:
    """The name of the layer: ``MCP_SERVING["CHANNEL_LAYER"]``, or ``default`` if the settings have that layer."""
    name = conf.configuration().channel_layer
    if name is not None:
        return name
    return DEFAULT_CHANNEL_LAYER if DEFAULT_CHANNEL_LAYER in channel_layers else None


def channel_layer() -> BaseChannelLayer | None:
    """The layer, or None if the settings have none."""
    name = layer_name()
    return None if name is None else channel_layers[name]


def problem() -> str | None:
    """Why the layer cannot be made, in one line; None if it can be made, or if the settings have none."""
    try:
        channel_layer()
    except Exception as error:  # a backend may raise anything
        cause = error.__context__
        is_missing = isinstance(cause, ImportError) and cause.name == "channels_redis"
        hint = " Install it with: pip install 'mcp-serving[redis]'." if is_missing else ""
        return f"CHANNEL_LAYERS[{layer_name()!r}]: {loading.cause_of(error)}.{hint}"
    return None


def shared_layer() -> BaseChannelLayer | None:
    """The layer if its messages reach other processes, else None."""
    layer = channel_layer()
    return layer if layer is not None and reaches_other_processes(layer) else None


def reaches_other_processes(layer: BaseChannelLayer) -> bool:
    """Whether messages on this layer reach other processes. Each process has an in-memory layer of its own."""
    return not isinstance(layer, InMemoryChannelLayer)


def stores_messages(layer: BaseChannelLayer) -> bool:
    """Whether it is the core layer of channels_redis, which needs ten Redis commands for a message instead of one."""
    kind = type(layer)
    return f"{kind.__module__}.{kind.__qualname__}" == "channels_redis.core.RedisChannelLayer"


async def new_channel(layer: BaseChannelLayer) -> str:
    """The name of a new channel on which this process receives and to which others can send.

    With several ``hosts``, ``channels_redis`` chooses the host of a channel from a hash of its name. A sender hashes
    the whole name. The receiver hashes the part before "!", which all channels of a process share. Only names for
    which both hashes lead to the same host can be used.
    """
    while True:
        channel: str = await layer.new_channel()
        host_of = getattr(layer, "consistent_hash", None)
        if host_of is None or "!" not in channel or host_of(channel) == host_of(layer.non_local_name(channel)):
            return channel
