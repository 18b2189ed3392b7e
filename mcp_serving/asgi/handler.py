from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import re_path
from django.urls.exceptions import Resolver404
from starlette.routing import Route

from mcp_serving import channel_layer, sdk
from mcp_serving.asgi import lifecycle, page
from mcp_serving.loading import discover
from mcp_serving.runtime import Runtime, imports_frozen
from mcp_serving.security import hosts
from mcp_serving.security.access import ACCESS_OPTIONS, Access
from mcp_serving.security.resource_metadata import WELL_KNOWN
from mcp_serving.sessions.limits import Limits
from mcp_serving.sessions.manager import Sessions
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.threads import async_orm_thread
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware, wire_of
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.relay import Relay

if TYPE_CHECKING:
    from django.urls import URLPattern
    from mcp.server.auth.provider import TokenVerifier
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.security.bearer_tokens import UserForToken

logger = logging.getLogger(__name__)

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NOT_STARTED = Refusal(503, "The MCP server could not be started.", headers={"retry-after": "5"})


@dataclass(frozen=True, slots=True)
class Mounted:
    """What one start of a handler serves: the SDK's other routes, and the MCP endpoint."""

    app: ASGIApp
    mcp: ASGIApp


class StreamableHTTPHandler:
    """An ASGI application that serves an MCP server over streamable HTTP, to be mounted in a Channels router.

    It starts the SDK's session manager by itself: with the ASGI lifespan where the web server speaks it,
    before listening under ``manage.py runmcp``, else with the first request. Host and Origin are checked
    against Django's ``ALLOWED_HOSTS`` and ``CSRF_TRUSTED_ORIGINS``, unless ``transport_security`` is given.

    ``public``, ``login_required``, ``auth`` or the ``auth`` of the server itself says who may call. A handler without
    any of them accepts requests only with ``DEBUG = True``.

    Args:
        mcp: an ``MCPServer`` or a low-level ``Server`` of the SDK.
        public: everybody may call.
        login_required: users who are logged in may call, as ``scope["user"]`` says: put the handler, or the router,
            into ``channels.auth.AuthMiddlewareStack``. Others get 401, unless they have a token for ``auth``.
        auth: callers with a bearer token may call. It is a verifier (``mcp_serving.tokens.UserTokenVerifier()``, or
            anything with the SDK's ``verify_token``), a list of verifiers, or the SDK's ``AuthSettings`` with a
            ``token_verifier`` beside it.
        token_verifier: goes with ``AuthSettings``.
        required_scopes: the scopes that each token needs, where ``auth`` is not ``AuthSettings``.
        user_for_token: a callable, sync or async, that is given the SDK's ``AccessToken`` and returns its Django
            user, which is then ``scope["user"]``; for None and for inactive users the token is refused.
        max_sessions_per_user: how many sessions one user or token may have open at once; None for any number.
            ``max_sessions`` of the SDK bounds all of them.
        max_streams_per_session: how many calls of one session may run at once, and how many streams it may have;
            at 2026-07-28, how many ``subscriptions/listen`` streams one user or token; None for any number.
        max_header_size: bytes of all names and values of a request's headers together; None for any number.
        **options: the options of the SDK's ``streamable_http_app()``, passed on unchanged:
            ``stateless_http``, ``json_response``, ``event_store``, ``session_idle_timeout`` (seconds),
            ``max_request_body_size`` (bytes), ``max_sessions``, ``transport_security`` and others.

    Raises:
        InvalidServer: ``mcp`` is not a server of the SDK.
        TypeError, ValueError: more than one says who may call, a bound is none, or the SDK does not know an
            option, or refuses its value.

    Example:
        >>> mcp_handler = StreamableHTTPHandler(server, login_required=True)
        >>> routes = URLRouter([*mcp_handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)])
        >>> application = ProtocolTypeRouter({
        ...     "http": AuthMiddlewareStack(routes),
        ...     "lifespan": mcp_handler.lifespan,
        ... })
    """

    def __init__(
        self,
        mcp: sdk.SDKServer,
        *,
        public: bool = False,
        login_required: bool = False,
        auth: AuthSettings | TokenVerifier | Sequence[TokenVerifier] | None = None,
        token_verifier: TokenVerifier | None = None,
        required_scopes: Sequence[str] = (),
        user_for_token: UserForToken | None = None,
        max_sessions_per_user: int | None = 1000,
        max_streams_per_session: int | None = 256,
        max_header_size: int | None = 32 * 1024,
        **options: Any,
    ) -> None:
        self._mcp = mcp
        self._server = sdk.low_level(mcp)
        self.paths: list[str] = []
        """Where ``urlpatterns`` has put it, relative to the router."""
        self.access = Access(
            mcp,
            public=public,
            login_required=login_required,
            auth=auth,
            token_verifier=token_verifier,
            required_scopes=required_scopes,
            user_for_token=user_for_token,
            paths=self.paths,
        )
        """Who may call."""
        self._limits = Limits(max_sessions_per_user, max_streams_per_session, max_header_size)
        if options.get("event_store") is not None:
            options["event_store"] = SessionEvents(options["event_store"])
        self._checks_hosts = options.get("transport_security") is None
        if self._checks_hosts:
            options["transport_security"] = sdk.without_host_checks()
        self.options = options
        """The options for the SDK's application."""
        # Built now, so that a wrong option is found at import; the first start uses it.
        self._built: tuple[Starlette, StreamableHTTPSessionManager, Sessions] | None = self._build()
        self._failing = False
        discover()
        lifecycle.register(self)

    @property
    def server(self) -> LowLevelServer[Any]:
        """The low-level server it serves."""
        return self._server

    @property
    def place(self) -> str:
        """Where it is mounted, for people, and for the handlers of other workers, which have the same."""
        return ", ".join(self.paths) or "no path of its own"

    @property
    def access_problem(self) -> str | None:
        """What is wrong with it once ``DEBUG`` is off; None where it says who may call."""
        if self.access.is_configured:
            return None
        return f"The StreamableHTTPHandler at {self.place} does not say who may call: give it {ACCESS_OPTIONS}"

    def urlpatterns(self, path: str, middleware: Callable[[ASGIApp], ASGIApp] | None = None) -> list[URLPattern]:
        """The routes for a Channels ``URLRouter``: ``path`` with and without a trailing slash, and what
        else belongs to the server (the OAuth metadata, the SDK's ``custom_route``).

        Args:
            path: where the MCP endpoint is, relative to the router.
            middleware: an ASGI middleware to put around these routes and no others.

        Example:
            >>> URLRouter([*mcp_handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)])
        """
        as_route: Any = re_path  # which is declared for Django's views only; URLRouter takes ASGI applications
        around: Callable[[ASGIApp], ASGIApp] = middleware or (lambda app: app)
        path = path.strip("/")
        self.paths.append(f"/{path}")
        app, *_ = self._built or self._build()
        others = [
            as_route(route.path_regex.pattern.removeprefix("^/"), around(partial(self._serve_other_route, route)))
            for route in app.routes
            if isinstance(route, Route)
        ]
        if self.access.metadata is not None:
            document = partial(self._serve_openly, self.access.metadata.document(f"/{path}"))
            others.append(as_route(rf"^{re.escape(f'{WELL_KNOWN}/{path}'.strip('/'))}/?\Z", around(document)))
        return [as_route(rf"^{re.escape(path)}/?\Z", around(self)), *others]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(scope, receive, send)
        elif scope["type"] == "http":
            _leave_doubled_slash_to_django(scope)
            await self._guarded(self._serve, scope, receive, send)
        else:
            raise ValueError(f"StreamableHTTPHandler serves http and lifespan, not {scope['type']!r}.")

    async def lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI lifespan application, for web servers that speak it: give it to the router as "lifespan".

        Startup enters the lifespan of the MCP server and starts all its handlers. Shutdown closes these,
        and the handlers of other MCP servers that a request has started since.
        """
        await receive()
        lifecycle.leave_closing_to_lifespan()
        try:
            await lifecycle.start(self._server)
        except Exception as error:
            logger.exception("The MCP server could not be started.")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        try:
            with imports_frozen():
                await receive()
        finally:
            await lifecycle.close()
        await send({"type": "lifespan.shutdown.complete"})

    # One request

    async def _guarded(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if wire_of(scope) is None:
            lifecycle.install_shutdown_hook()
            app = RequestTrackingMiddleware(app, Runtime.of(self._server).in_flight)
            # httptools leaves the whitespace around a value in it, and the SDK compares values with the message.
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refused := self._refusal(scope):
            await refused(scope, receive, send)
        else:
            await self.access.serve(self._serve_admitted, scope, receive, send)

    async def _serve_admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        if page.is_wanted(scope):
            await page.page_about(self._server)(scope, receive, send)
        elif (mounted := await self._mounted()) is None:
            await _NOT_STARTED(scope, receive, send)
        else:
            await _exchange(mounted.mcp, scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Why the request is refused before anything of it is parsed."""
        return (
            self._limits.refusal(scope)
            or (hosts.refusal(scope) if self._checks_hosts else None)
            or self.access.refusal_without_access_option()
        )

    def _refusal_on_another_route(self, scope: Scope) -> Refusal | None:
        """The same for what the SDK keeps open to everybody: a page of any origin may read it, and change nothing."""
        return (
            self._limits.refusal(scope)
            or (hosts.refusal(scope, any_origin=scope["method"] in _SAFE_METHODS) if self._checks_hosts else None)
            or self.access.refusal_without_access_option()
        )

    async def _serve_other_route(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if (mounted := await self._mounted()) is None:
                await _NOT_STARTED(scope, receive, send)
            else:
                below = {**scope, "root_path": _root_path(scope["path"], route)}
                async with async_orm_thread():
                    await mounted.app(below, receive, send)

        await self._serve_openly(partial(self.access.serve_anybody, serve), scope, receive, send)

    async def _serve_openly(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a route that is open to callers without a token."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await (self._refusal_on_another_route(scope) or app)(scope, receive, send)

        _leave_doubled_slash_to_django(scope)
        await self._guarded(serve, scope, receive, send)

    # The life of the SDK's session manager

    async def start(self) -> Mounted:
        """Start what is not started yet in the running event loop: the server's lifespan, this handler.

        Raises:
            Exception: whatever the lifespan raised; the next call tries again.
        """
        runtime = Runtime.of(self._server)
        await runtime.open()
        return await runtime.open_on_top(self, self._run)

    async def _mounted(self) -> Mounted | None:
        """The started handler; None if it cannot be started now."""
        mounted: Mounted | None = Runtime.of(self._server).opened_on_top(self)
        if mounted is not None:
            return mounted
        try:
            mounted = await self.start()
        except Exception:
            if not self._failing:
                logger.exception("The MCP server could not be started; requests get 503 until it can.")
            self._failing = True
            return None
        self._failing = False
        return mounted

    def _build(self) -> tuple[Starlette, StreamableHTTPSessionManager, Sessions]:
        app = sdk.http_app(self._mcp, self.options, self.access.auth_settings)
        app.debug = app.debug and settings.DEBUG  # it shows tracebacks to whoever asks for a custom route
        manager = self._mcp.session_manager
        return app, manager, Sessions(manager, self._limits)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[Mounted]:
        app, manager, sessions = self._built or self._build()
        self._built = None  # a session manager runs once
        view = await Runtime.of(self._server).open()
        view.middleware.insert(1, sessions.limit_calls)
        sdk.set_served(manager, view)
        relay = None
        if (layer := channel_layer.shared_layer()) is not None:
            serve_relayed = partial(self._guarded, partial(_exchange, sessions.serve_relayed))
            relay = Relay(layer, serve_relayed, self.place, manager.max_request_body_size)
        try:
            async with manager.run(), sessions.shared(relay):
                yield Mounted(app, sessions)
        finally:
            if isinstance(manager.event_store, SessionEvents):
                await manager.event_store.aclose()


async def _exchange(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the SDK answer: a standing stream to a GET, a call to a POST."""
    wire = wire_of(scope)
    assert wire is not None
    if scope["method"] == "POST":
        await wire.run_call(app, scope, receive, send)
        return
    if scope["method"] == "GET":
        wire.exchange.stand()
    await app(scope, receive, send)


def _root_path(path: str, route: Route) -> str:
    """What stands before a route of the SDK's application in the path: a router's prefix, the server's root path."""
    starts = (match.start() for match in re.finditer("/", path))
    return next(path[:start] for start in starts if route.path_regex.match(path[start:]))


def _leave_doubled_slash_to_django(scope: Scope) -> None:
    """URLRouter strips all leading slashes, so that ``//mcp`` would match: let the next route have it."""
    if "//" in scope["path"] and "url_route" in scope:
        raise Resolver404({"path": scope["path"]})
