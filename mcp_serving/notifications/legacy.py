"""Notifications for sessions up to protocol 2025-11-25, which have no ``subscriptions/listen``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    EmptyResult,
    ServerCapabilities,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_serving import current_request, sdk
from mcp_serving.notifications.subscription_limits import MAX_URI_LENGTH, SubscribedUris

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.subscriptions import ServerEvent

    from mcp_serving.notifications.bus import SubscribedNotifications

_SUBSCRIBER = "mcp_serving.notifications"
"""The key of the session's subscriber in the state of its SDK connection."""


class LegacySessions:
    """Notifies the older sessions of one MCP server.

    A session is notified of the resources that it has subscribed to, and of each change of a list.

    Args:
        bus: delivers the notifications.
        may_subscribe: returns whether a resource exists at a URI and the user of the current request may read it.
    """

    def __init__(self, bus: SubscribedNotifications, may_subscribe: Callable[[str], Awaitable[bool]]) -> None:
        self._bus = bus
        self._may_subscribe = may_subscribe

    async def middleware(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """An MCP middleware that announces notifications to a client, and starts to notify its session."""
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            can_be_notified = sdk.connection(ctx.session).has_standalone_channel
            return {**result, "capabilities": _announced(result["capabilities"], can_be_notified)}
        if ctx.method == "notifications/initialized" and ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            self._subscriber_of(ctx)
        return result

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """The handler of ``resources/subscribe``."""
        subscriber = self._subscriber_of(ctx)
        if subscriber is None:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if len(params.uri) > MAX_URI_LENGTH or not await self._may_subscribe(params.uri):
            raise MCPError(INVALID_PARAMS, f"Unknown resource: {params.uri}", {"uri": params.uri})
        subscriber.add(params.uri)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        """The handler of ``resources/unsubscribe``."""
        if (subscriber := self._subscriber_of(ctx)) is not None:
            subscriber.remove(params.uri)
        return EmptyResult()

    def _subscriber_of(self, ctx: ServerRequestContext[Any, Any]) -> _Subscriber | None:
        """The subscriber of a request's session; None if only responses can be sent, as in a stateless handler."""
        connection = sdk.connection(ctx.session)
        subscriber: _Subscriber | None = connection.state.get(_SUBSCRIBER)
        if subscriber is None and connection.has_standalone_channel:
            principal = current_request.get().principal
            subscriber = connection.state[_SUBSCRIBER] = _Subscriber(connection, self._bus, principal)
            connection.exit_stack.callback(subscriber.close)
        return subscriber


def _announced(capabilities: Any, can_be_notified: bool) -> dict[str, Any]:
    """The SDK's capabilities, with the notifications that this session really gets.

    The SDK announces subscriptions to every client, and list changes to none.
    """
    announced = ServerCapabilities.model_validate(capabilities)
    for kind in (announced.tools, announced.prompts, announced.resources):
        if kind is not None:
            kind.list_changed = can_be_notified
    if announced.resources is not None:
        announced.resources.subscribe = can_be_notified
    return announced.model_dump(by_alias=True, mode="json", exclude_none=True)


class _Subscriber:
    """The subscriptions of one session, and the notifications that it was not sent yet.

    A notification says that something can be read again. Two equal ones that were not sent yet are one. So a session
    never holds more notifications than subscriptions, however slowly its client reads, and no other session waits.
    """

    __slots__ = ("_bus", "_connection", "_sender", "_unsent", "_unsubscribe", "_uris", "_written")

    def __init__(self, connection: Connection, bus: SubscribedNotifications, principal: str | None) -> None:
        self._connection = connection
        self._bus = bus
        self._uris = SubscribedUris(principal)
        self._written: dict[Hashable, dict[str, None]] = {}
        """The subscribed URIs by their identity, in each way that the client has written them."""
        self._unsent: dict[ServerEvent, None] = {}
        self._sender: asyncio.Task[None] | None = None
        self._unsubscribe = bus.subscribe(self.notify)

    def add(self, uri: str) -> None:
        """Subscribe to a URI.

        Raises:
            MCPError: the session, or its user, has too many subscriptions.
        """
        self._uris.add(uri)
        self._written.setdefault(self._bus.identify(uri), {})[uri] = None

    def remove(self, uri: str) -> None:
        """End the subscription to a URI, if there is one."""
        self._uris.discard(uri)
        for identity, written in self._written.items():
            if uri in written:
                del written[uri]
                if not written:
                    del self._written[identity]
                break

    def notify(self, change: ServerEvent) -> None:
        if not isinstance(change, ResourceUpdated):
            self._send_soon(change)
        elif self._written:
            for uri in self._written.get(self._bus.identity_of(change), ()):
                self._send_soon(ResourceUpdated(uri=uri))

    def _send_soon(self, change: ServerEvent) -> None:
        self._unsent[change] = None
        if self._sender is None:
            # An empty context, so that the sender does not keep the context of the code that made the change.
            self._sender = asyncio.get_running_loop().create_task(self._send_all(), context=Context())

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                change = next(iter(self._unsent))
                del self._unsent[change]
                await _send(self._connection, change)
        finally:
            self._sender = None

    def close(self) -> None:
        self._unsubscribe()
        self._uris.clear()
        self._unsent.clear()
        if self._sender is not None:
            self._sender.cancel()


async def _send(connection: Connection, change: ServerEvent) -> None:
    match change:
        case ResourceUpdated(uri=uri):
            await connection.send_resource_updated(uri)
        case ResourcesListChanged():
            await connection.send_resource_list_changed()
        case ToolsListChanged():
            await connection.send_tool_list_changed()
        case PromptsListChanged():
            await connection.send_prompt_list_changed()
