"""The SDK's applications for one start of a handler: a session manager of the SDK runs only once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from starlette.routing import Route

from mcp_serving import sdk
from mcp_serving.asgi.rate_limit import RateLimit
from mcp_serving.asgi.request_checks import RequestCheck, RequestChecks
from mcp_serving.asgi.scope_check import ScopeCheck
from mcp_serving.rate_limits import storage
from mcp_serving.security.bearer_tokens import remaining_lifetime
from mcp_serving.sessions.manager import Sessions
from mcp_serving.sessions.resumable_events import SessionEvents
from mcp_serving.threads import async_orm_thread
from mcp_serving.tools.visibility import PermissionCheckingServer
from mcp_serving.web_servers.middleware import http_request
from mcp_serving.web_servers.request_body import ValueLimitMiddleware

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.rate_limits.rate import Rate
    from mcp_serving.security.access import Access
    from mcp_serving.sessions.limits import Limits
    from mcp_serving.workers.relay import Relay


class SDKApplication:
    """The MCP endpoint, with the sessions of this package around the SDK's, and the SDK's application for other routes.

    Args:
        mcp: a server of the SDK.
        options: of the SDK's ``streamable_http_app()``.
        access: who may call, with the settings from which the SDK makes its routes for OAuth.
        limits: how much one caller may have.
        rate: how many requests one caller may make.
        place: returns where the handler is mounted.
    """

    def __init__(
        self,
        mcp: sdk.SDKServer,
        options: Mapping[str, Any],
        access: Access,
        limits: Limits,
        rate: Rate | None,
        place: Callable[[], str],
    ) -> None:
        self.other_routes = sdk.http_app(mcp, options, access.auth_settings)
        """Serves the OAuth metadata, and the SDK's custom routes."""
        # With debug on, Starlette shows tracebacks to everybody who asks for a custom route.
        self.other_routes.debug = self.other_routes.debug and settings.DEBUG
        self._manager = mcp.session_manager
        self.sessions = Sessions(self._manager, limits)
        checks: list[RequestCheck] = [] if rate is None else [RateLimit(mcp, rate, place)]
        counts = rate is not None
        if isinstance(mcp, PermissionCheckingServer):
            checks.append(ScopeCheck(mcp, access))
            counts = counts or bool(mcp.rates)
        if counts:
            storage.check()
        endpoint = RequestChecks(self.sessions, checks, self.max_body_size) if checks else self.sessions
        # Outermost, because the other applications parse the body.
        self._mcp_endpoint = ValueLimitMiddleware(endpoint, self.max_body_size)

    @property
    def routes(self) -> list[Route]:
        """The routes that ``other_routes`` serves."""
        return [route for route in self.other_routes.routes if isinstance(route, Route)]

    @property
    def session_count(self) -> int:
        """How many sessions of clients up to 2025-11-25 are open."""
        return len(sdk.open_sessions(self._manager))

    @property
    def max_body_size(self) -> int:
        """Bytes that the body of a request may have."""
        return self._manager.max_request_body_size

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve a request to the MCP endpoint."""
        return _serve_mcp(self._mcp_endpoint, scope, receive, send)

    def serve_relayed(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve a request to the MCP endpoint that another worker has checked and relayed."""
        return _serve_mcp(self.sessions.serve_relayed, scope, receive, send)

    async def serve_other_route(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request for one of ``routes``, wherever the routes are mounted."""
        scope = {**scope, "root_path": _root_path(scope["path"], route)}
        with async_orm_thread():
            await self.other_routes(scope, receive, send)

    @asynccontextmanager
    async def run(self, server: LowLevelServer[Any], relay: Relay | None) -> AsyncIterator[None]:
        """Run the session manager for the length of a block.

        Args:
            server: the server to serve, whose lifespan has been entered.
            relay: to the sessions of other workers.
        """
        server.middleware.insert(1, self.sessions.limit_calls)
        sdk.set_served(self._manager, server)
        try:
            async with self._manager.run(), self.sessions.shared(relay):
                yield
        finally:
            if isinstance(self._manager.event_store, SessionEvents):
                await self._manager.event_store.aclose()


def _root_path(path: str, route: Route) -> str:
    """The part of the path before a route of the SDK's application: a router's prefix, the web server's root path."""
    starts = (match.start() for match in re.finditer("/", path))
    return next(path[:start] for start in starts if route.path_regex.match(path[start:]))


def _serve_mcp(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """Let the SDK answer: a POST is a call, and a GET opens a stream."""
    request = http_request(scope)
    assert request is not None
    if scope["method"] == "POST":
        return request.run_call(app, scope, receive, send)
    if scope["method"] == "GET":
        request.in_flight.become_stream(lifetime=remaining_lifetime())
    return app(scope, receive, send)
