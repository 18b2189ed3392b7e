"""What a subscriber hears of: nothing of resources that are hidden from them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated, ServerEvent, SubscriptionBus

hidden_uris: ContextVar[frozenset[str]] = ContextVar("mcp_serving.hidden_uris", default=frozenset())
"""The URIs that the request at hand subscribes to, and whose resource its user may not read."""


class VisibleEvents:
    """A bus whose listeners hear nothing of what is hidden from the user who subscribed.

    Args:
        bus: what carries the events; the SDK's own, within the process, if left out.
    """

    def __init__(self, bus: SubscriptionBus | None = None) -> None:
        self._bus = bus or InMemorySubscriptionBus()

    async def publish(self, event: ServerEvent) -> None:
        await self._bus.publish(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        hidden = hidden_uris.get()
        if not hidden:
            return self._bus.subscribe(listener)

        def hear(event: ServerEvent) -> None:
            if not (isinstance(event, ResourceUpdated) and event.uri in hidden):
                listener(event)

        return self._bus.subscribe(hear)
