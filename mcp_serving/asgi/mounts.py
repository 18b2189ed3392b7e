"""The mounts of a handler, each with a middleware of its own, which relayed requests pass, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django.urls.exceptions import Resolver404

from mcp_serving.workers.scope_serialization import MOUNT

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class Mounts:
    """The mounts of one handler.

    The middleware of a mount runs in the worker that receives a request, and again in the worker that has its
    session: what it puts into the scope and into context variables cannot be sent to another process.

    Args:
        serve_relayed: serves a request that another worker has relayed.
    """

    def __init__(self, serve_relayed: ASGIApp) -> None:
        self._serve_relayed = serve_relayed
        self._relayed: list[ASGIApp] = []

    def add(self, app: ASGIApp, middleware: Callable[[ASGIApp], ASGIApp]) -> ASGIApp:
        """The application to mount: ``app`` with the middleware around it."""
        number = len(self._relayed)
        self._relayed.append(middleware(self._serve_relayed))
        return middleware(partial(_serve_with_number, app, number))

    async def serve_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that another worker has relayed, through the middleware of its mount."""
        app = self._relayed[scope[MOUNT]] if MOUNT in scope else self._serve_relayed
        await app(scope, receive, send)


async def _serve_with_number(app: ASGIApp, number: int, scope: Scope, receive: Receive, send: Send) -> None:
    scope[MOUNT] = number  # a copy: URLRouter, or the middleware of the mount, makes one for each request
    await app(scope, receive, send)


def leave_double_slash_to_django(scope: Scope) -> None:
    """URLRouter strips all leading slashes, so that ``//mcp`` would match. The next route gets it."""
    if "//" in scope["path"] and "url_route" in scope:
        raise Resolver404({"path": scope["path"]})
