"""Finding an MCP endpoint that another route of its router hides."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from channels.routing import ProtocolTypeRouter, URLRouter

if TYPE_CHECKING:
    from mcp_serving.asgi.lifecycle import Handler

logger = logging.getLogger(__name__)

_INNER = ("inner", "application", "app")
"""The attributes in which the middleware of Channels and Starlette keeps the application that it wraps."""


def warn_of_hidden_mounts(application: object, handlers: Iterable[Handler]) -> None:
    """Log a warning for each endpoint whose path an earlier route matches: its announced address answers 404.

    Only the router in which the endpoint stands is looked at, and only if it can be found in the application.
    """
    router = _router(application)
    if router is None:
        return
    for handler in handlers:
        if not any(route in router.routes for route in handler.routes):
            continue
        for path in handler.paths:
            first = next((route for route in router.routes if route.pattern.match(path.lstrip("/"))), None)
            if first is not None and first not in handler.routes and _router(first.callback) is None:
                logger.warning(
                    "The route %r comes before the MCP endpoint %s and matches its path, so that no client reaches the "
                    "endpoint: put *handler.urlpatterns(...) before that route in the URLRouter.",
                    str(first.pattern),
                    path,
                )


def _router(application: object) -> URLRouter | None:
    """The URLRouter for HTTP in an application; None if there is none, or if it cannot be found."""
    seen: list[object] = []
    while application is not None and application not in seen:
        seen.append(application)
        if isinstance(application, URLRouter):
            return application
        if isinstance(application, ProtocolTypeRouter):
            application = application.application_mapping.get("http")
        else:
            application = next((found for name in _INNER if (found := getattr(application, name, None))), None)
    return None
