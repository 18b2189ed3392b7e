"""Two endpoints for load balancers and orchestrators: is the process alive, and is it ready for requests?

They are ASGI applications for the router, in front of Django: they need no database, no allowed host and no login.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from django.urls import re_path
from starlette.responses import PlainTextResponse

from mcp_serving.asgi import lifecycle
from mcp_serving.loading import in_one_line
from mcp_serving.runtime import runtimes

if TYPE_CHECKING:
    from django.urls import URLPattern
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

START_SECONDS = 1.0
"""Seconds that ``ready`` waits for a lifespan that is being entered."""

_logged: set[str] = set()
"""The problem that the log has already; empty while everything is ready."""


def urlpatterns(path: str) -> list[URLPattern]:
    """The routes ``path/live`` and ``path/ready`` for a Channels ``URLRouter``.

    Args:
        path: relative to the router.

    Example:
        >>> URLRouter([*health.urlpatterns("health"), *mcp_handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)])
    """
    prefix = re.escape(path.strip("/"))
    as_route: Any = re_path  # its type allows only Django's views; URLRouter takes ASGI applications
    return [as_route(rf"^{prefix}/live/?\Z", live), as_route(rf"^{prefix}/ready/?\Z", ready)]


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200: the event loop runs."""
    await _respond(scope, receive, send, None)


async def ready(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 if requests are served; 503 from the first signal on, and while a lifespan cannot be entered."""
    lifecycle.install_shutdown_hook()
    await _respond(scope, receive, send, await _problem())


async def _problem() -> str | None:
    if any(runtime.in_flight.stopping or runtime.in_flight.draining for runtime in runtimes()):
        return "The server is shutting down."
    try:
        async with asyncio.timeout(START_SECONDS):
            for handler in lifecycle.handlers():
                await handler.start()
    except Exception as error:
        cause = "it is still starting" if isinstance(error, TimeoutError) else in_one_line(error)
        if cause not in _logged:
            _logged.add(cause)
            logger.warning("Not ready, because the MCP server cannot be started: %s.", cause)
        return "The MCP server cannot be started."
    _logged.clear()
    return None


async def _respond(scope: Scope, receive: Receive, send: Send, problem: str | None) -> None:
    response = PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, {"cache-control": "no-store"})
    await response(scope, receive, send)
