"""The channel layer that the processes of a project have in common, if they have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from channels import DEFAULT_CHANNEL_LAYER
from channels.layers import InMemoryChannelLayer, channel_layers

from mcp_serving import conf, loading

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer


def layer_name() -> str | None:
    """The name of the layer: ``MCP_SERVING["CHANNEL_LAYER"]``, else ``default`` where that is configured."""
    name = conf.configuration().channel_layer
    if name is not None:
        return name
    return DEFAULT_CHANNEL_LAYER if DEFAULT_CHANNEL_LAYER in channel_layers else None


def channel_layer() -> BaseChannelLayer | None:
    """The layer itself; None where the settings have none."""
    name = layer_name()
    return None if name is None else channel_layers[name]


def problem() -> str | None:
    """Why the layer cannot be made, in one line; None where it can, and where there is none."""
    try:
        channel_layer()
    except Exception as error:  # whatever a backend raises
        cause = error.__context__
        is_missing = isinstance(cause, ImportError) and cause.name == "channels_redis"
        hint = " It comes with mcp-serving[redis]." if is_missing else ""
        return f"CHANNEL_LAYERS[{layer_name()!r}]: {loading.cause_of(error)}.{hint}"
    return None


def shared_layer() -> BaseChannelLayer | None:
    """The layer, if what is sent on it reaches other processes; None where there is no such layer."""
    layer = channel_layer()
    return layer if layer is not None and reaches_other_processes(layer) else None


def reaches_other_processes(layer: BaseChannelLayer) -> bool:
    """Whether what is sent on it can arrive anywhere else: the in-memory layer is each process's own."""
    return not isinstance(layer, InMemoryChannelLayer)


async def new_channel(layer: BaseChannelLayer) -> str:
    """A channel of this process that others can send to.

    Of several ``hosts``, ``channels_redis`` picks one by the name of a channel: to send, by the whole of it, and to
    receive, by the part that all channels of a process have in common. Only a name is good for which these agree.
    """
    while True:
        channel: str = await layer.new_channel()
        host_of = getattr(layer, "consistent_hash", None)
        if host_of is None or "!" not in channel or host_of(channel) == host_of(layer.non_local_name(channel)):
            return channel
