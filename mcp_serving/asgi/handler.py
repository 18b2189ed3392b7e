"""The ASGI application that a router mounts."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from django.urls import re_path

from mcp_serving import channel_layer, sdk
from mcp_serving.asgi import lifecycle, page
from mcp_serving.asgi.mounts import Mounts, leave_double_slash_to_django
from mcp_serving.asgi.sdk_application import SDKApplication
from mcp_serving.loading import discover
from mcp_serving.rate_limits.rate import valid_rate
from mcp_serving.runtime import Runtime
from mcp_serving.security import hosts
from mcp_serving.security.access import ACCESS_OPTIONS, Access
from mcp_serving.security.resource_metadata import WELL_KNOWN
from mcp_serving.sessions.limits import Limits
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.tools.visibility import PermissionCheckingServer
from mcp_serving.web_servers import daphne
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware, http_request
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.relay import Relay

if TYPE_CHECKING:
    from django.urls import URLPattern
    from mcp.server.auth.provider import TokenVerifier
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.security.bearer_tokens import UserForToken

logger = logging.getLogger(__name__)

_Serve: TypeAlias = "Callable[[SDKApplication, Scope, Receive, Send], Awaitable[None]]"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NOT_FOUND = Refusal(404, "Not Found")
_NOT_STARTED = Refusal(503, "The MCP server could not be started.", headers={"retry-after": "5"})


class StreamableHTTPHandler:
    """An ASGI application that serves an MCP server over streamable HTTP. A Channels router mounts it.

    It starts the SDK's session manager by itself: with the ASGI lifespan if the web server supports it, before
    listening under ``manage.py runmcp``, otherwise with the first request. Host and Origin are checked against
    Django's ``ALLOWED_HOSTS`` and ``CSRF_TRUSTED_ORIGINS``, unless ``transport_security`` is given.

    ``public``, ``login_required``, ``auth`` or the ``auth`` of the server itself says who may call. Without any of
    them, the handler accepts requests only with ``DEBUG = True``.

    Args:
        mcp: an ``MCPServer`` or a low-level ``Server`` of the SDK.
        public: everybody may call.
        login_required: users who are logged in may call. ``scope["user"]`` must be set: put the handler, or the
            router, into ``channels.auth.AuthMiddlewareStack``. Others get 401, unless they have a token for ``auth``.
        auth: callers with a bearer token may call. It is a verifier (``mcp_serving.tokens.UserTokenVerifier()``, or
            any object with the SDK's ``verify_token``), a list of verifiers, or the SDK's ``AuthSettings`` together
            with a ``token_verifier``.
        token_verifier: the verifier that goes with ``AuthSettings``.
        required_scopes: the scopes that each token must have, if ``auth`` is not ``AuthSettings``.
        user_for_token: a callable, sync or async, that takes the SDK's ``AccessToken`` and returns the Django user of
            the token, who becomes ``scope["user"]``. For None and for inactive users the token is refused.
        max_sessions_per_user: the number of sessions that one user or token may have open; None for no limit.
            ``max_sessions`` of the SDK limits all sessions together.
        max_streams_per_session: the number of calls of one session that may run at once, and the number of its
            streams. At 2026-07-28: the same for one user or token. None for no limit.
        max_header_size: bytes of the names and values of all headers of a request; None for no limit.
        rate: how many requests each user, token or (if anonymous) address may make, such as ``"600/m"``. Requests above
            it get 429; None for no limit.
        **options: the options of the SDK's ``streamable_http_app()``, passed on unchanged: ``stateless_http``,
            ``json_response``, ``event_store``, ``session_idle_timeout`` (seconds), ``max_request_body_size`` (bytes),
            ``max_sessions``, ``transport_security`` and others.

    Raises:
        InvalidServer: ``mcp`` is not a server of the SDK.
        TypeError, ValueError: the options that say who may call contradict each other, a limit is not a positive
            integer, or the SDK does not accept an option.

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
        rate: str | None = None,
        **options: Any,
    ) -> None:
        self._mcp = mcp
        self._server = sdk.low_level(mcp)
        self._mounts = Mounts(self._serve_relayed)
        self.routes: list[URLPattern] = []
        self.paths: list[str] = []
        """The paths of ``urlpatterns``, relative to the router."""
        self.access = Access(
            mcp,
            public=public,
            login_required=login_required,
            auth=auth,
            token_verifier=token_verifier,
            required_scopes=required_scopes,
            user_for_token=user_for_token,
            paths=self.paths,
            scopes=mcp.scopes.all if isinstance(mcp, PermissionCheckingServer) else list,
        )
        """Who may call."""
        self._limits = Limits(max_sessions_per_user, max_streams_per_session, max_header_size)
        self.rate = valid_rate("the StreamableHTTPHandler", rate)
        """How many requests each caller may make."""
        if options.get("event_store") is not None:
            options["event_store"] = SessionEvents(options["event_store"])
        self._checks_hosts = options.get("transport_security") is None
        if self._checks_hosts:
            options["transport_security"] = sdk.without_host_checks()
        self.options: Mapping[str, Any] = options
        """The options of the SDK's application."""
        # Built now, so that importing the project finds a wrong option. The first start uses it.
        self._built: SDKApplication | None = self._build()
        self._start_failed = False
        discover()
        lifecycle.register(self)

    @property
    def server(self) -> LowLevelServer[Any]:
        """The low-level server that it serves."""
        return self._server

    @property
    def mcp(self) -> sdk.SDKServer:
        """The server it was made for."""
        return self._mcp

    @property
    def session_count(self) -> int:
        """How many sessions of clients up to 2025-11-25 are open in the running event loop."""
        started = self._running_application()
        return started.session_count if started is not None else 0

    @property
    def place(self) -> str:
        """Where it is mounted, for messages, and for the handlers of other workers, which are mounted there too."""
        return ", ".join(self.paths) or "no path of its own"

    @property
    def access_problem(self) -> str | None:
        """Why it refuses every request with ``DEBUG = False``; None if an option says who may call."""
        if self.access.is_configured:
            return None
        return f"The StreamableHTTPHandler at {self.place} does not say who may call: give it {ACCESS_OPTIONS}"

    def urlpatterns(self, path: str, middleware: Callable[[ASGIApp], ASGIApp] | None = None) -> list[URLPattern]:
        """The routes for a Channels ``URLRouter``: ``path`` with and without a trailing slash, and the server's other
        routes (the OAuth metadata, the SDK's ``custom_route``).

        Args:
            path: the path of the MCP endpoint, relative to the router.
            middleware: an ASGI middleware to put around these routes only. With several workers, it runs in the worker
                that receives a request, and again in the worker that has its session.

        Example:
            >>> URLRouter([*mcp_handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)])
        """
        as_route: Any = re_path  # declared for Django's views only; URLRouter takes ASGI applications
        around: Callable[[ASGIApp], ASGIApp] = middleware or (lambda app: app)
        path = path.strip("/")
        endpoint = self._mounts.add(self, around)
        self.paths.append(f"/{path}")
        others = [
            as_route(route.path_regex.pattern.removeprefix("^/"), around(partial(self._serve_other_route, route)))
            for route in (self._built or self._build()).routes
        ]
        if self.access.metadata is not None:
            document = partial(self._serve_openly, self.access.metadata.document(f"/{path}"))
            others.append(as_route(rf"^{re.escape(f'{WELL_KNOWN}/{path}'.strip('/'))}/?\Z", around(document)))
        routes = [as_route(rf"^{re.escape(path)}/?\Z", endpoint), *others]
        self.routes += routes
        return routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(scope, receive, send)
        elif scope["type"] == "http":
            leave_double_slash_to_django(scope)
            await self._tracked(self._serve, scope, receive, send)
        else:
            raise ValueError(f"StreamableHTTPHandler serves http and lifespan, not {scope['type']!r}.")

    async def lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI lifespan application, for web servers that support it. Give it to the router as "lifespan".

        Startup enters the lifespan of the MCP server and starts all its handlers. Shutdown closes them, and the
        handlers of other MCP servers that a request has started since.
        """
        await lifecycle.serve_lifespan(self._server, receive, send)

    # One request

    def _tracked(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve a request through a ``RequestTrackingMiddleware``, unless there is one around the router."""
        if http_request(scope) is None:
            if daphne.replaced_root_path(send) is not None:
                return _NOT_FOUND(scope, receive, send)
            lifecycle.install_shutdown_hook()
            # httptools leaves whitespace around the values, and the SDK compares values with the message.
            app = RequestTrackingMiddleware(app, Runtime.of(self._server).in_flight, strips_headers=True).serve_http
        return app(scope, receive, send)

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if refusal := self._refusal(scope):
            return refusal(scope, receive, send)
        if page.is_wanted(scope):
            return self.access.serve(self._serve_page, scope, receive, page.with_login(scope, send))
        return self.access.serve(self._serve_admitted, scope, receive, send)

    async def _serve_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        callers = self.access.callers
        await page.page_about(self._server, scope, needs_token=callers.with_token)(scope, receive, send)

    def _serve_admitted(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._serve_with_application(SDKApplication.serve, scope, receive, send)

    def _refusal(self, scope: Scope, *, any_origin: bool = False) -> Refusal | None:
        """Why a request is refused before anybody looks at its caller; None if it is not."""
        header_size, host_and_origin = hosts.read_headers(scope)
        return (
            self._limits.refusal(header_size)
            or (hosts.refusal(scope, host_and_origin, any_origin=any_origin) if self._checks_hosts else None)
            or self.access.refusal_without_access_option()
        )

    async def _serve_other_route(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        def serve(started: SDKApplication, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return started.serve_other_route(route, scope, receive, send)

        app = partial(self.access.serve_anybody, partial(self._serve_with_application, serve))
        await self._serve_openly(app, scope, receive, send)

    async def _serve_openly(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a route that is open to callers without a token."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            # Web pages of any origin may read these routes, because they are open to everybody.
            refusal = self._refusal(scope, any_origin=scope["method"] in _SAFE_METHODS)
            await (refusal or app)(scope, receive, send)

        leave_double_slash_to_django(scope)
        await self._tracked(serve, scope, receive, send)

    async def _serve_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not a plain method: asgiref takes such a callable for an application of ASGI 2, and some middleware asks it.
        await self._serve_with_application(SDKApplication.serve_relayed, scope, receive, send)

    # The SDK's application

    async def start(self) -> SDKApplication:
        """In the running event loop, enter the server's lifespan and start the SDK's application, once each.

        Raises:
            Exception: whatever the lifespan raised. The next call tries again.
        """
        runtime = Runtime.of(self._server)
        await runtime.open()
        return await runtime.start_service(self, self._run)

    def _running_application(self) -> SDKApplication | None:
        """The SDK's application, if it is started in the running event loop."""
        started: SDKApplication | None = Runtime.of(self._server).running_service(self)
        return started

    def _serve_with_application(self, serve: _Serve, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Start the SDK's application unless it runs, and let ``serve`` answer the request with it."""
        if (started := self._running_application()) is not None:
            return serve(started, scope, receive, send)
        return self._start_and_serve_with(serve, scope, receive, send)

    async def _start_and_serve_with(self, serve: _Serve, scope: Scope, receive: Receive, send: Send) -> None:
        if (started := await self._start_application()) is None:
            await _NOT_STARTED(scope, receive, send)
        else:
            await serve(started, scope, receive, send)

    async def _start_application(self) -> SDKApplication | None:
        """Start the SDK's application; None if it cannot be started, which is logged once."""
        try:
            started = await self.start()
        except Exception:
            if not self._start_failed:
                logger.exception("The MCP server could not be started; requests get 503 until it can.")
            self._start_failed = True
            return None
        self._start_failed = False
        return started

    def _build(self) -> SDKApplication:
        return SDKApplication(self._mcp, self.options, self.access, self._limits, self.rate, lambda: self.place)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[SDKApplication]:
        application = self._built or self._build()
        self._built = None  # it runs once
        server = await Runtime.of(self._server).open()
        async with application.run(server, self._relay(application)):
            yield application

    def _relay(self, application: SDKApplication) -> Relay | None:
        """The relay to the sessions of other workers; None if no channel layer reaches them."""
        layer = channel_layer.shared_layer()
        if layer is None:
            return None
        serve = partial(self._tracked, self._mounts.serve_relayed)
        return Relay(layer, serve, self.place, application.max_body_size)
