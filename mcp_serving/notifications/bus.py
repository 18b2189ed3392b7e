"""What carries the events of a server, and what a subscriber hears of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import anyio.lowlevel
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    SubscriptionBus,
    ToolsListChanged,
)

from mcp_serving import current_request
from mcp_serving.notifications import publish
from mcp_serving.notifications.publish import Message

logger = logging.getLogger(__name__)

Listener = Callable[[ServerEvent], None]

_LISTS: dict[str, ServerEvent] = {
    "tools_changed": ToolsListChanged(),
    "prompts_changed": PromptsListChanged(),
    "resources_changed": ResourcesListChanged(),
}
_KINDS = {event: kind for kind, event in _LISTS.items()}


class ChannelLayerBus:
    """The SDK's ``SubscriptionBus`` over the project's channel layer.

    Its subscribers hear what is published on it, what is published in other processes on a bus with the same name,
    and what ``notify_resource_updated`` and its like tell all servers. Without a channel layer that reaches other
    processes it does the same within its own. ``mcp_serving.MCPServer`` has one unless it is given another bus.

    Args:
        name: of the server whose events it carries.
        serves: says of a URI whether this server has a resource there: what all servers are told of other URIs is
            not for its clients. They hear of each URI if it is left out.

    Example:
        >>> server = Server("shop", on_subscriptions_listen=ListenHandler(ChannelLayerBus("shop")))
    """

    def __init__(self, name: str = "", *, serves: Callable[[str], bool] | None = None) -> None:
        self._name = name
        self._serves = serves
        self._listeners: dict[object, tuple[Listener, asyncio.AbstractEventLoop]] = {}
        publish.here.join(self)

    async def publish(self, event: ServerEvent) -> None:
        """Deliver ``event`` to every subscriber, here and in the other processes."""
        if isinstance(event, ResourceUpdated):
            message = publish.message("resource_updated", uri=event.uri, server=self._name)
        else:
            message = publish.message(_KINDS[event], server=self._name)
        publish.here.remember(message)  # the layer will bring it back
        self._tell(event)
        await publish.others.send(message)
        await anyio.lowlevel.checkpoint()  # as the SDK's bus does: streams drain between the events of one task

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have ``listener`` called, in the running event loop, with each event from now on."""
        token = object()
        self._listeners[token] = listener, asyncio.get_running_loop()

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    def hear(self, message: Message) -> None:
        """An event from elsewhere, in any thread."""
        server, uri = message["server"], message["uri"]
        if server not in (None, self._name):
            return
        if server is None and uri is not None and self._serves is not None and not self._serves(uri):
            return
        self._tell(_LISTS[message["kind"]] if uri is None else ResourceUpdated(uri=uri))

    def _tell(self, event: ServerEvent) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for listener, loop in list(self._listeners.values()):
            if loop is running:
                _call(listener, event)
            else:
                with suppress(RuntimeError):  # closed, and with it what has subscribed
                    loop.call_soon_threadsafe(_call, listener, event)


def _call(listener: Listener, event: ServerEvent) -> None:
    try:
        listener(event)
    except Exception:  # it must not cost the others theirs
        logger.exception("A subscriber failed to hear of an event.")


class VisibleNotifications:
    """A bus whose listeners hear nothing of what is hidden from the user who subscribed.

    Args:
        bus: what carries the events.
    """

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus

    async def publish(self, event: ServerEvent) -> None:
        await self._bus.publish(event)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        hidden = current_request.get().hidden_uris
        if not hidden:
            return self._bus.subscribe(listener)

        def hear(event: ServerEvent) -> None:
            if not (isinstance(event, ResourceUpdated) and event.uri in hidden):
                listener(event)

        return self._bus.subscribe(hear)
