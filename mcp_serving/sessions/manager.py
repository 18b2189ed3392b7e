"""A session belongs to who opened it, and nobody has more of them than allowed.

The session id that a client gets is the SDK's, signed for the user or token that opened the session. For anybody
else it is an id that does not exist, so that the SDK's own answer to such a one is the only answer there is.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signing import BadSignature, Signer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_serving import current_request, sdk
from mcp_serving.security import access
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.sessions.resumption import replay_what_is_left
from mcp_serving.web_servers.request_body import with_body
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.relay import Fate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_serving.workers.relay import Relay

logger = logging.getLogger(__name__)

_HEADER = MCP_SESSION_ID_HEADER.encode()
_LAST_EVENT = LAST_EVENT_ID_HEADER.encode()
_METHOD = MCP_METHOD_HEADER.encode()
_LISTEN = sdk.LISTEN.encode()
_VERSION = MCP_PROTOCOL_VERSION_HEADER.encode()
_VERSIONS_OF_OLDER_CLIENTS = {version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS}
_UNKNOWN = "unknown"
"""A session id that the SDK never gives."""
_PROCESS = f"~{secrets.token_hex(4)}"
"""This process, where there is no layer on which it would have a channel; no channel is called so."""


@dataclass(frozen=True)
class Bounds:
    """How much one caller may hold at once; None where there is no bound.

    Args:
        sessions_per_user: open sessions of one user or token. Those of anonymous callers are only bounded
            all together, by the SDK's ``max_sessions``.
        streams_per_session: calls of one session that run, and as many streams (GET); at 2026-07-28, which has no
            sessions, the ``subscriptions/listen`` streams of one user or token.
        header_size: bytes of a request's headers, names and values.

    Raises:
        ValueError: one of them is no whole number from 1 on.
    """

    sessions_per_user: int | None
    streams_per_session: int | None
    header_size: int | None

    def __post_init__(self) -> None:
        for name, bound in vars(self).items():
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
                raise ValueError(f"max_{name} is {bound!r}; it has to be a whole number from 1 on, or None.")

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request is refused for its size."""
        most = self.header_size
        if most is None or sum(len(name) + len(value) for name, value in scope["headers"]) <= most:
            return None
        return Refusal(431, "The headers are too large.", f"its headers have more than max_header_size={most} bytes")


class Sessions:
    """The SDK's session manager as one caller sees it: an ASGI application around its own.

    Args:
        manager: runs the sessions.
        bounds: what one caller may hold at once.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, bounds: Bounds) -> None:
        self._manager = manager
        self._app: ASGIApp = manager.asgi_app
        self._bounds = bounds
        self._owners: dict[str, str] = {}
        """Whose a session is, for counting; some of them may have ended."""
        self._held: Counter[str] = Counter()
        self._opening: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._relay: Relay | None = None
        self._has_told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = access.with_user_of_token(scope)
        if self._manager.event_store is None or self._manager.stateless:
            # Who would resume gets a new stream: the SDK would leave the request without an answer.
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != _LAST_EVENT]}
        if not _is_of_an_older_client(scope):
            with self._stream(principal(scope) if _listens(scope) else None) as free:
                await (self._app(scope, receive, send) if free else _TOO_MANY_STREAMS(scope, receive, send))
        elif self._manager.stateless:
            await self._app(scope, receive, send)
        elif given := _given(scope):
            owner = principal(scope)
            session = _Session.of(given, owner)
            if self._relay is not None and session.has_worker and session.worker != self._relay.channel:
                await self._serve_elsewhere(session, owner, scope, receive, send)
            else:
                self._tell_of_another_process(session)
                await self._serve_in_session(session, owner, scope, receive, send)
        else:
            await self._serve_opening(principal(scope), scope, receive, send)

    # Past one process

    @asynccontextmanager
    async def shared(self, relay: Relay | None) -> AsyncIterator[None]:
        """For as long as the block lasts, have requests of other workers' sessions relayed, if there is a relay."""
        if relay is None or self._manager.stateless:
            yield
            return
        async with relay.open():
            self._relay = relay
            try:
                yield
            finally:
                self._relay = None

    async def serve_incoming(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of another worker, which has found out who calls."""
        owner = principal(scope)
        await self._serve_in_session(_Session.of(_given(scope), owner), owner, scope, receive, send)

    async def _serve_elsewhere(
        self, session: _Session, owner: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        assert self._relay is not None
        if await self._relay.relay(session.worker, scope, receive, send) is Fate.OWNER_GONE:
            await self._serve_in_session(session, owner, scope, with_body(b"", receive), send)

    def _tell_of_another_process(self, session: _Session) -> None:
        """Once: who has forgotten the layer sees nothing else of it than clients that are told 404."""
        if session.worker.startswith("~") and session.worker != _PROCESS and not self._has_told:
            self._has_told = True
            logger.warning(
                "A client has asked for a session that another process opened, and gets 404. If that process has "
                "ended, the client opens a new one; if it is another worker, they need a channel layer in common."
            )

    # In this process

    async def _serve_in_session(
        self, session: _Session, owner: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name != _HEADER]
        headers.append((_HEADER, session.id.encode()))
        # What its calls are, the middleware below counts: answers, notifications and the end of a session have room.
        with (
            self._stream(session.nonce if scope["method"] == "GET" else None) as free,
            current_request.updated(session_nonce=session.nonce),
        ):
            if free:
                send = self._knowing_the_end(session, session.signing(send, owner))
                scope = {**scope, "headers": headers}
                left = self._events_after_the_end(session)
                if left is not None and await replay_what_is_left(left, session.id, scope, receive, send):
                    return
                await self._app(scope, receive, send)
                if scope["method"] == "DELETE" and (ended := self._events_after_the_end(session)) is not None:
                    await ended.forget()
            else:
                await _TOO_MANY_STREAMS(scope, receive, send)

    def _events_after_the_end(self, session: _Session) -> SessionEvents | None:
        """The events of a session that has ended, in this process or with the one that had it."""
        events = self._manager.event_store
        over = session.nonce and sdk.has_ended(self._manager, session.id)
        return events if over and isinstance(events, SessionEvents) else None

    def _knowing_the_end(self, session: _Session, send: Send) -> Send:
        """``send``, for which a call is not the server's failure if its client has ended the session meanwhile."""

        async def told(message: Message) -> None:
            if message.get("status") == 500 and sdk.has_ended(self._manager, session.id):
                message = {**message, "status": 404}
            await send(message)

        return told

    async def _serve_opening(self, owner: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if owner is not None and not self._has_room(owner):
            await _TOO_MANY_SESSIONS(scope, receive, send)
            return
        worker = _PROCESS if self._relay is None else self._relay.channel
        session = _Session(nonce=secrets.token_hex(8), worker=worker)
        with current_request.updated(session_nonce=session.nonce), self._counted(owner, session):
            await self._app(scope, receive, session.signing(send, owner))

    # Bounds

    async def bounded(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """An MCP middleware: so many calls of a session run at once, whether their client still waits or has left."""
        nonce = current_request.get().session_nonce
        is_call = ctx.request_id is not None and ctx.method != "ping"
        with self._stream(f"calls of {nonce}" if nonce and is_call else None) as free:
            if not free:
                raise MCPError(INTERNAL_ERROR, "Too many calls of this session are running.")
            return await call_next(ctx)

    @contextmanager
    def _stream(self, holder: str | None) -> Iterator[bool]:
        """Whether there is room for one more stream, or call, of this holder, which is then taken."""
        most = self._bounds.streams_per_session
        if not holder or most is None:
            yield True
        elif self._streams[holder] >= most:
            yield False
        else:
            with _one_more(self._streams, holder):
                yield True

    def _has_room(self, owner: str) -> bool:
        most = self._bounds.sessions_per_user
        if most is not None and self._held[owner] + self._opening[owner] >= most:
            self._forget_ended()
        return most is None or self._held[owner] + self._opening[owner] < most

    @contextmanager
    def _counted(self, owner: str | None, session: _Session) -> Iterator[None]:
        if owner is None:
            yield
            return
        try:
            with _one_more(self._opening, owner):
                yield
        finally:
            still_open = sdk.open_sessions(self._manager)
            if session.id in still_open:
                self._owners[session.id] = owner
                self._held[owner] += 1
            if len(self._owners) > 2 * len(still_open) + 100:
                self._forget_ended()

    def _forget_ended(self) -> None:
        """Nobody tells of the end of a session, so that now and then those that are left are counted."""
        still_open = sdk.open_sessions(self._manager)
        self._owners = {session: owner for session, owner in self._owners.items() if session in still_open}
        self._held = Counter(self._owners.values())


@contextmanager
def _one_more(held: Counter[str], holder: str) -> Iterator[None]:
    held[holder] += 1
    try:
        yield
    finally:
        held[holder] -= 1
        if not held[holder]:
            del held[holder]


def principal(scope: Scope) -> str | None:
    """Who calls, as far as anybody can tell: a user, a token, both. None for an anonymous caller."""
    token = get_access_token()
    user = scope.get("user")
    known = user is not None and user.is_authenticated and not isinstance(user, AuthenticatedUser)
    parts = [None if token is None else principal_components(token), _name_of(user) if known else None]
    return repr(parts) if any(part is not None for part in parts) else None


def _name_of(user: Any) -> str:
    """What tells a user from others: for a user who is no model, as Starlette's are not, what they are called."""
    key = getattr(user, "pk", None) or getattr(user, "display_name", None)
    return repr(user) if key is None else str(key)


def _given(scope: Scope) -> list[bytes]:
    """The session ids that a request names."""
    return [value for name, value in scope["headers"] if name == _HEADER]


def _is_of_an_older_client(scope: Scope) -> bool:
    """By the header that the SDK tells them by."""
    version = next((value for name, value in scope["headers"] if name == _VERSION), None)
    return version is None or version in _VERSIONS_OF_OLDER_CLIENTS


def _listens(scope: Scope) -> bool:
    return any(name == _METHOD and value == _LISTEN for name, value in scope["headers"])


@dataclass
class _Session:
    """A session of an older client.

    The nonce is in the id that its client has, so that it is known while the session is being opened, when the
    SDK has not told its id yet.
    """

    id: str = _UNKNOWN
    nonce: str = ""
    known_as: bytes = b""
    """What its client calls it."""
    worker: str = ""
    """The channel of the worker that has it; without a layer, its process; empty where it did not know its channel."""

    @property
    def has_worker(self) -> bool:
        """Whether another worker can be asked for it."""
        return self.worker != "" and not self.worker.startswith("~")

    @classmethod
    def of(cls, given: list[bytes], owner: str | None) -> _Session:
        """The session that these headers name; one that does not exist if it is somebody else's."""
        try:
            name, nonce, worker = _unsigned(given[0].decode("latin-1"), owner, *_keys()).split(".", 2)
        except (BadSignature, ValueError):
            return cls()
        return cls(name, nonce, given[0], worker) if len(given) == 1 else cls()

    def signing(self, send: Send, owner: str | None) -> Send:
        """``send``, for which the SDK's id of the session becomes the one that its client gets."""

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    (name, self._told(value, owner) if name.lower() == _HEADER else value)
                    for name, value in message.get("headers", ())
                ]
                message = {**message, "headers": headers}
            await send(message)

        return signed

    def _told(self, value: bytes, owner: str | None) -> bytes:
        if not self.known_as:
            self.id = value.decode()
            self.known_as = _signer(owner).sign(f"{self.id}.{self.nonce}.{self.worker}").encode()
        return self.known_as


def _signer(owner: str | None) -> Signer:
    return Signer(salt=f"mcp_serving.session:{owner!r}")


def _keys() -> tuple[Any, ...]:
    """What ``Signer`` signs with, and what it accepts beside."""
    return settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS


@lru_cache(maxsize=4096)
def _unsigned(known_as: str, owner: str | None, *_: Any) -> str:
    """What was signed as ``known_as``: remembered for as long as ``_keys()`` stay what they are.

    What is raised is not kept: only ids that were given out are in the cache.

    Raises:
        BadSignature: this owner was given no such id.
    """
    return _signer(owner).unsign(known_as)


_TOO_MANY_SESSIONS = Refusal(
    503,
    "You have too many open sessions.",
    "its user has as many sessions as max_sessions_per_user allows",
    headers={"retry-after": "1"},
)
_TOO_MANY_STREAMS = Refusal(
    429,
    "Too many streams are open.",
    "its session, or its user, has as many streams as max_streams_per_session allows",
    headers={"retry-after": "1"},
)
