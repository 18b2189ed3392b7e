"""The server that the console shows, and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from mcp.client import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID

from mcp_serving import conf, loading, sdk
from mcp_serving.asgi import lifecycle
from mcp_serving.inspection.client import connect
from mcp_serving.runtime import Runtime
from mcp_serving.shutdown.deadline import Deadline

if TYPE_CHECKING:
    from django.http import HttpRequest
    from mcp import Client

    from mcp_serving.asgi.handler import StreamableHTTPHandler

CLOSE_SECONDS = 5.0
"""How long the lifespan may take to be left under WSGI, where it is entered for each page."""

_made: dict[str, sdk.SDKServer] = {}


def server() -> sdk.SDKServer:
    """``MCP_SERVING["SERVER"]``. If that is a callable, the server that a handler of this process serves.

    Raises:
        ImproperlyConfigured: it cannot be loaded.
    """
    path = conf.configuration().server
    handlers = _handlers()
    if path is None:
        if handlers:
            return handlers[0].mcp
        raise ImproperlyConfigured("The console shows MCP_SERVING['SERVER'], which is not set.")
    loaded: Any = loading.load(path)
    if not callable(loaded):
        return _made.setdefault(path, loading.load_server(path))
    if path not in _made:
        _made[path] = handlers[0].mcp if handlers else loading.load_server(path)
    return _made[path]


def mounts() -> list[StreamableHTTPHandler]:
    """The handlers of this process that are mounted in a router."""
    return [handler for handler in _handlers() if handler.paths]


def _handlers() -> list[StreamableHTTPHandler]:
    return cast("list[StreamableHTTPHandler]", lifecycle.handlers())


def mounts_of_server() -> list[StreamableHTTPHandler]:
    """Those that serve the server of the console."""
    low_level = sdk.low_level(server())
    return [handler for handler in mounts() if handler.server is low_level]


def is_asgi(request: HttpRequest) -> bool:
    """Whether the page is served by an event loop that lives longer than the page."""
    return isinstance(request, ASGIRequest)


@asynccontextmanager
async def client_for(request: HttpRequest, user: Any, **options: Any) -> AsyncIterator[Client]:
    """A client of the server, which calls as ``user``."""
    mcp = server()
    if is_asgi(request):
        lifecycle.install_shutdown_hook()  # else a web server would wait for a subscription of the console for ever
    # A host of MCP Apps says so: tools may answer with less to clients that show no apps.
    extensions = [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]
    try:
        async with connect(mcp, user=user, extensions=extensions, **options) as client:
            yield client
    finally:
        if not is_asgi(request):
            await Runtime.of(sdk.low_level(mcp)).close(Deadline(CLOSE_SECONDS))
