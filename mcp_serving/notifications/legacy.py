"""Events for clients of up to 2025-11-25: what ``subscriptions/listen`` is for newer ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    EmptyResult,
    ServerCapabilities,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_serving import sdk

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.subscriptions import ServerEvent, SubscriptionBus

MOST_SUBSCRIPTIONS = 1024
"""How many resources one session may subscribe to: as many as a server of the SDK has ``subscriptions/listen``."""

LONGEST_URI = 2048
"""A session keeps what it has subscribed to: one that is longer does not exist."""

_KEY = "mcp_serving.notifications.publish"


class LegacySessions:
    """The sessions of one server's older clients, as listeners of its bus.

    Each hears of the resources that it has subscribed to, and of each list that has changed. It ends with its
    connection.

    Args:
        bus: carries the events.
        may_subscribe: whether the user of the request at hand can read what is at this URI, if anything is.
    """

    def __init__(self, bus: SubscriptionBus, may_subscribe: Callable[[str], Awaitable[bool]]) -> None:
        self._bus = bus
        self._may_subscribe = may_subscribe

    async def attend(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """An MCP middleware: tells a client what it can have, and lets its session hear from then on."""
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            can = sdk.connection(ctx.session).has_standalone_channel
            return {**result, "capabilities": _announced(result["capabilities"], can)}
        if ctx.method == "notifications/initialized" and ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            self._session_of(ctx)
        return result

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """The handler of ``resources/subscribe``."""
        session = self._session_of(ctx)
        if session is None:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if len(params.uri) > LONGEST_URI or not await self._may_subscribe(params.uri):
            raise MCPError(INVALID_PARAMS, f"Unknown resource: {params.uri}", {"uri": params.uri})
        if len(session.uris) >= MOST_SUBSCRIPTIONS and params.uri not in session.uris:
            raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
        session.uris.add(params.uri)
        return EmptyResult()

    async def unsubscribe(self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams) -> EmptyResult:
        """The handler of ``resources/unsubscribe``."""
        if (session := self._session_of(ctx)) is not None:
            session.uris.discard(params.uri)
        return EmptyResult()

    def _session_of(self, ctx: ServerRequestContext[Any, Any]) -> _Session | None:
        """The session of a request; None where nothing can be sent but answers, as in a stateless handler."""
        connection = sdk.connection(ctx.session)
        session: _Session | None = connection.state.get(_KEY)
        if session is None and connection.has_standalone_channel:
            session = connection.state[_KEY] = _Session(connection)
            unsubscribe = self._bus.subscribe(session.hear)
            connection.exit_stack.callback(session.end)
            connection.exit_stack.callback(unsubscribe)
        return session


def _announced(capabilities: Any, can: bool) -> dict[str, Any]:
    """The capabilities of the SDK, which announces no change of a list, and subscriptions to everybody."""
    announced = ServerCapabilities.model_validate(capabilities)
    for kind in (announced.tools, announced.prompts, announced.resources):
        if kind is not None:
            kind.list_changed = can
    if announced.resources is not None:
        announced.resources.subscribe = can
    return announced.model_dump(by_alias=True, mode="json", exclude_none=True)


class _Session:
    """What one session is to hear of and has not been sent yet.

    An event says that there is something to be read again: the same one twice, unsent, is one. So it holds no more
    than its subscriptions, however slowly its client reads, and no other session waits for that.
    """

    def __init__(self, connection: Connection) -> None:
        self.uris: set[str] = set()
        self._connection = connection
        self._unsent: dict[ServerEvent, None] = {}
        self._sender: asyncio.Task[None] | None = None

    def hear(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri not in self.uris:
            return
        self._unsent[event] = None
        if self._sender is None:
            # An empty context: nothing of whoever has told of the change.
            self._sender = asyncio.get_running_loop().create_task(self._send(), context=Context())

    async def _send(self) -> None:
        try:
            while self._unsent:
                event = next(iter(self._unsent))
                del self._unsent[event]
                await _send(self._connection, event)
        finally:
            self._sender = None

    def end(self) -> None:
        self._unsent.clear()
        if self._sender is not None:
            self._sender.cancel()


async def _send(connection: Connection, event: ServerEvent) -> None:
    match event:
        case ResourceUpdated(uri=uri):
            await connection.send_resource_updated(uri)
        case ResourcesListChanged():
            await connection.send_resource_list_changed()
        case ToolsListChanged():
            await connection.send_tool_list_changed()
        case PromptsListChanged():
            await connection.send_prompt_list_changed()
