"""The bus that delivers notifications to ``subscriptions/listen`` streams and to older sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
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
from mcp_serving.notifications.publish import Notification

logger = logging.getLogger(__name__)

Listener = Callable[[ServerEvent], None]

_LIST_CHANGES: dict[str, ServerEvent] = {
    "tools_changed": ToolsListChanged(),
    "prompts_changed": PromptsListChanged(),
    "resources_changed": ResourcesListChanged(),
}
_KINDS = {change: kind for kind, change in _LIST_CHANGES.items()}


class ChannelLayerBus:
    """The SDK's ``SubscriptionBus`` over the project's channel layer.

    Its subscribers receive what is published on it, what other processes publish on a bus with the same name, and the
    notifications of ``notify_resource_updated`` and the other ``notify_*`` functions. Without a channel layer that
    reaches other processes, it delivers the notifications of its own process. ``mcp_serving.MCPServer`` has such a bus
    unless it is given another one.

    Args:
        name: the name of the server whose notifications it delivers.
        serves: returns whether this server has a resource at a URI. ``notify_resource_updated`` tells all servers;
            updates of URIs for which ``serves`` is false are not delivered. By default, all are.

    Example:
        >>> server = Server("shop", on_subscriptions_listen=ListenHandler(ChannelLayerBus("shop")))
    """

    def __init__(self, name: str = "", *, serves: Callable[[str], bool] | None = None) -> None:
        self._name = name
        self._serves = serves
        self._listeners: dict[object, tuple[Listener, asyncio.AbstractEventLoop]] = {}
        publish.local_buses.add(self)

    async def publish(self, event: ServerEvent) -> None:
        """Deliver a change to every subscriber, in this process and in the others."""
        if isinstance(event, ResourceUpdated):
            change = publish.notification("resource_updated", uri=event.uri, server=self._name)
        else:
            change = publish.notification(_KINDS[event], server=self._name)
        publish.local_buses.remember(change)  # the layer delivers it to this process, too
        self._call_listeners(event)
        await publish.send_to_other_processes(change)
        await anyio.lowlevel.checkpoint()  # as in the SDK's bus: one task's many changes must not fill the streams

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with each change from now on, in the event loop that is running now."""
        token = object()
        self._listeners[token] = listener, asyncio.get_running_loop()

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    def deliver(self, change: Notification) -> None:
        """Deliver a notification that was not published on this bus, from any thread."""
        server, uri = change["server"], change["uri"]
        if server not in (None, self._name):
            return
        if server is None and uri is not None and self._serves is not None and not self._serves(uri):
            return
        self._call_listeners(_LIST_CHANGES[change["kind"]] if uri is None else ResourceUpdated(uri=uri))

    def _call_listeners(self, change: ServerEvent) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for listener, loop in list(self._listeners.values()):
            if loop is running:
                _call(listener, change)
            else:
                with suppress(RuntimeError):  # the loop is closed, and its subscribers are gone
                    loop.call_soon_threadsafe(_call, listener, change)


def _call(listener: Listener, change: ServerEvent) -> None:
    try:
        listener(change)
    except Exception:  # the other subscribers must still be called
        logger.exception("A subscriber raised an exception while it was notified of %r.", change)


class SubscribedNotifications:
    """A bus that notifies each ``subscriptions/listen`` stream of its URIs, as its client has written them.

    Clients may percent-encode the same URI in different ways. A stream is not notified of resources that are hidden
    from its user.

    Args:
        bus: delivers the notifications.
        identify: returns equal values for all ways to write a URI.
    """

    def __init__(self, bus: SubscriptionBus, identify: Callable[[str], Hashable]) -> None:
        self.identify = identify
        self._bus = bus
        self._last: tuple[ResourceUpdated | None, Hashable] = (None, None)

    async def publish(self, event: ServerEvent) -> None:
        await self._bus.publish(event)

    def identity_of(self, change: ResourceUpdated) -> Hashable:
        """``identify`` for the URI of a change, once for all subscribers."""
        last, identity = self._last
        if last is not change:
            identity = self.identify(change.uri)
            self._last = change, identity
        return identity

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        uris = current_request.get().listen_uris
        if uris is None:
            return self._bus.subscribe(listener)
        subscribed: dict[Hashable, list[str]] = {}
        for uri in uris:
            subscribed.setdefault(self.identify(uri), []).append(uri)

        def notify(change: ServerEvent) -> None:
            if not isinstance(change, ResourceUpdated):
                listener(change)
            elif subscribed:
                for uri in subscribed.get(self.identity_of(change), ()):
                    listener(ResourceUpdated(uri=uri))

        return self._bus.subscribe(notify)
