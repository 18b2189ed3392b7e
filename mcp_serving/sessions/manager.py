"""The sessions of one handler: each belongs to its owner, their number is limited, and some are in other workers."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http import LAST_EVENT_ID_HEADER
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_serving import current_request, sdk
from mcp_serving.call_outcomes import Refused
from mcp_serving.notifications.subscription_limits import subscribed_to
from mcp_serving.security.principal import principal
from mcp_serving.sessions import session_ids
from mcp_serving.sessions.calls import CallsInProgress, refused_id
from mcp_serving.sessions.limits import TOO_MANY_SESSIONS, TOO_MANY_STREAMS, Counted, Limits
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.sessions.resumption import replay_missed_events
from mcp_serving.sessions.session_ids import SessionId
from mcp_serving.web_servers.request_body import TOO_LARGE, read_body, with_body
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.json_rpc import request_in
from mcp_serving.workers.outgoing_request import RelayResult
from mcp_serving.workers.scope_serialization import missing_entries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_serving.workers.relay import Relay

logger = logging.getLogger(__name__)

_LAST_EVENT_ID = LAST_EVENT_ID_HEADER.encode()
_METHOD = MCP_METHOD_HEADER.encode()
_LISTEN = sdk.LISTEN.encode()
_VERSION = MCP_PROTOCOL_VERSION_HEADER.encode()
_LEGACY_VERSIONS = {version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS}
_USER_MISSING = Refusal(500, "Internal Server Error")


class Sessions:
    """An ASGI application around the SDK's session manager, which checks owners and limits.

    Args:
        manager: runs the sessions.
        limits: how much one caller may have at the same time.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, limits: Limits) -> None:
        self._manager = manager
        self._app: ASGIApp = manager.asgi_app
        self._limits = limits
        self._owners: dict[str, str] = {}
        """The owners of sessions, by the SDK's id. Some of these sessions may have ended."""
        self._open: Counter[str] = Counter()
        """How many sessions in ``_owners`` each owner has."""
        self._opening: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._calls = CallsInProgress()
        if isinstance(manager.event_store, SessionEvents):
            manager.event_store.on_response = self._calls.response_stored
        self._relay: Relay | None = None
        self._has_warned = False
        self._missing: set[tuple[str, ...]] = set()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        first = dict(reversed(scope["headers"]))  # of a repeated header the first value, as in the SDK
        if _LAST_EVENT_ID in first and (self._manager.event_store is None or self._manager.stateless):
            # Without an event store, the SDK does not answer a request that resumes a stream. Without this header, its
            # client gets a new stream.
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != _LAST_EVENT_ID]}
        if _is_legacy(first.get(_VERSION)):
            return self._serve_legacy(scope, receive, send)
        return self._serve_modern(first.get(_METHOD) == _LISTEN, scope, receive, send)

    async def _serve_modern(self, is_stream: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of 2026-07-28, which has no sessions. Its header says whether it opens a stream."""
        caller = principal(scope)
        with current_request.updated(principal=caller):
            if not is_stream:
                await self._app(scope, receive, send)
                return
            with self._stream(caller) as is_allowed:
                await (self._app if is_allowed else TOO_MANY_STREAMS)(scope, receive, send)

    async def _serve_legacy(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager.stateless:
            with current_request.updated(principal=principal(scope)):
                await self._app(scope, receive, send)
        elif headers := session_ids.in_headers(scope):
            owner = principal(scope)
            session = SessionId.of(headers, owner)
            if self._relay is not None and session.has_channel and session.worker != self._relay.channel:
                await self._relay_request(session, owner, scope, receive, send)
            else:
                self._warn_of_another_process(session)
                await self._serve_in_session(session, owner, scope, receive, send)
        else:
            await self._serve_opening(principal(scope), scope, receive, send)

    # Sessions in other workers

    @asynccontextmanager
    async def shared(self, relay: Relay | None) -> AsyncIterator[None]:
        """For the length of the block, relay requests for sessions in other workers, if there is a relay."""
        if relay is None or self._manager.stateless:
            yield
            return
        async with relay.open():
            self._relay = relay
            try:
                yield
            finally:
                self._relay = None

    async def serve_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that another worker has authenticated and relayed, after the mount's middleware."""
        if missing := missing_entries(scope):
            self._warn_of_missing(tuple(missing))
            if "user" in missing:
                await _USER_MISSING(scope, receive, send)
                return
        owner = principal(scope)
        session = SessionId.of(session_ids.in_headers(scope), owner)
        await self._serve_in_session(session, owner, scope, receive, send)

    def _warn_of_missing(self, names: tuple[str, ...]) -> None:
        """Warn once for each combination: a tool could silently work for the wrong tenant."""
        if names not in self._missing:
            self._missing.add(names)
            logger.warning(
                "A relayed request lacks the scope entries %s: only text, numbers, lists, dicts and Django users reach "
                "the worker that has the session. Give the middleware that sets them to urlpatterns(path, "
                "middleware=...), which runs in both workers.",
                ", ".join(map(repr, names)),
            )

    async def _relay_request(
        self, session: SessionId, owner: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        assert self._relay is not None
        if await self._relay.relay(session.worker, scope, receive, send) is RelayResult.OWNER_GONE:
            await self._serve_in_session(session, owner, scope, with_body(b"", receive), send)

    def _warn_of_another_process(self, session: SessionId) -> None:
        """Warn once. Without a channel layer, clients that get 404 are the only other sign of the mistake."""
        if session.is_of_another_process and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A client sent the id of a session that another process opened, and gets 404. If that process has "
                "ended, this is normal, and the client opens a new session. If it is another worker, configure a "
                "channel layer that all workers share."
            )

    # Sessions in this process

    async def _serve_in_session(
        self, session: SessionId, owner: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if self._calls.is_ending(session.nonce):
            session = SessionId()
        headers = [(name, value) for name, value in scope["headers"] if name != session_ids.HEADER]
        headers.append((session_ids.HEADER, session.sdk_id.encode()))
        scope = {**scope, "headers": headers}
        send = self._with_404_after_end(session, session.signing(send, owner))
        serve = {"POST": self._serve_post, "GET": self._serve_get, "DELETE": self._serve_delete}
        with current_request.updated(session_nonce=session.nonce, principal=owner):
            await serve.get(scope["method"], self._serve_other_method)(session, scope, receive, send)

    async def _serve_post(self, session: SessionId, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, self._manager.max_request_body_size)
        if body is None:  # or the client has left, and nobody reads this response
            await TOO_LARGE(scope, receive, send)
            return
        request = request_in(body)
        call = self._calls.post_began(session.nonce, None if request is None else request.id)
        if call is None:
            assert request is not None
            await refused_id(request.id)(scope, receive, send)
            return
        try:
            if request is not None:
                send = self._calls.sending(send, call, partial(sdk.has_ended, self._manager, session.sdk_id))
            await self._app(scope, with_body(body, receive), send)
        finally:
            self._calls.post_ended(call)

    async def _serve_get(self, session: SessionId, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stream(session.nonce) as is_allowed:
            if not is_allowed:
                await TOO_MANY_STREAMS(scope, receive, send)
                return
            events = self._events_of_ended(session)
            if events is None or not await replay_missed_events(events, session.sdk_id, scope, receive, send):
                await self._app(scope, receive, send)

    async def _serve_delete(self, session: SessionId, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._calls.end(session.nonce):
            await self._app(scope, receive, send)
        if (events := self._events_of_ended(session)) is not None:
            await events.forget()

    async def _serve_other_method(self, _: SessionId, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def _events_of_ended(self, session: SessionId) -> SessionEvents | None:
        """The resumable events of a session that has ended or whose worker is gone; None if it is still open."""
        events = self._manager.event_store
        has_ended = session.nonce and sdk.has_ended(self._manager, session.sdk_id)
        return events if has_ended and isinstance(events, SessionEvents) else None

    def _with_404_after_end(self, session: SessionId, send: Send) -> Send:
        """``send`` that answers 404 in place of 500 if the client has ended the session during its call."""

        def send_404_after_end(message: Message) -> Awaitable[None]:
            if message.get("status") == 500 and sdk.has_ended(self._manager, session.sdk_id):
                message = {**message, "status": 404}
            return send(message)

        return send_404_after_end

    async def _serve_opening(self, owner: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if owner is not None and not self._may_open(owner):
            await TOO_MANY_SESSIONS(scope, receive, send)
            return
        session = SessionId.new(session_ids.PROCESS if self._relay is None else self._relay.channel)
        with (
            current_request.updated(session_nonce=session.nonce, principal=owner),
            self._counted(owner, session),
        ):
            await self._app(scope, receive, session.signing(send, owner))

    # Limits

    async def limit_calls(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """An MCP middleware that limits the URIs of a ``subscriptions/listen`` stream, and the calls of a session.

        Without a session, it limits the calls of a user or token. A call counts until it ends, even if no client waits
        for its result any more.
        """
        current = current_request.get()
        if ctx.method == sdk.LISTEN:
            with subscribed_to(ctx.params, current.principal):
                return await call_next(ctx)
        holder = current.session_nonce or current.principal
        if not holder or ctx.request_id is None:
            return await call_next(ctx)
        call = self._calls.handler_began(current.session_nonce, ctx.request_id)
        try:
            with self._stream(f"calls of {holder}" if ctx.method != "ping" else None) as is_allowed:
                if not is_allowed:
                    whose = "this session" if current.session_nonce else "this user"
                    raise MCPError(INTERNAL_ERROR, f"Too many calls of {whose} are running.") from Refused("limit")
                return await call_next(ctx)
        finally:
            self._calls.handler_ended(call)

    def _stream(self, holder: str | None) -> Counted:
        """Count one more stream or call of a holder during a block. Its value is False if the holder has too many."""
        return Counted(self._streams, holder, self._limits.streams_per_session)

    def _may_open(self, owner: str) -> bool:
        limit = self._limits.sessions_per_user
        if limit is not None and self._open[owner] + self._opening[owner] >= limit:
            self._forget_ended()
        return limit is None or self._open[owner] + self._opening[owner] < limit

    @contextmanager
    def _counted(self, owner: str | None, session: SessionId) -> Iterator[None]:
        if owner is None:
            yield
            return
        try:
            with Counted(self._opening, owner):
                yield
        finally:
            still_open = sdk.open_sessions(self._manager)
            if session.sdk_id in still_open:
                self._owners[session.sdk_id] = owner
                self._open[owner] += 1
            if len(self._owners) > 2 * len(still_open) + 100:
                self._forget_ended()

    def _forget_ended(self) -> None:
        """Count again. The SDK does not tell when a session ends."""
        still_open = sdk.open_sessions(self._manager)
        self._owners = {session: owner for session, owner in self._owners.items() if session in still_open}
        self._open = Counter(self._owners.values())


def _is_legacy(version: bytes | None) -> bool:
    """Whether the SDK takes a request with this version header for one of protocol 2025-11-25 or earlier."""
    return version is None or version in _LEGACY_VERSIONS
