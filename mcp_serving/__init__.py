"""Serve the Model Context Protocol from a Django project: over stdio, over Daphne, or over both.

Everything is imported when it is first used: listing this app in ``INSTALLED_APPS`` must not make the
other management commands load the MCP SDK or Daphne.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_serving.asgi.handler import StreamableHTTPHandler
    from mcp_serving.errors import (
        InvalidEndpoint,
        InvalidHTTPServer,
        InvalidServer,
        InvalidShutdownTimeout,
        InvalidTransport,
        ListenError,
        NoApplication,
        NoHTTPServer,
        ShutdownTimeout,
    )
    from mcp_serving.server import Server
    from mcp_serving.transport import Transport

_HOMES = {
    "InvalidEndpoint": "errors",
    "InvalidHTTPServer": "errors",
    "InvalidServer": "errors",
    "InvalidShutdownTimeout": "errors",
    "InvalidTransport": "errors",
    "ListenError": "errors",
    "NoApplication": "errors",
    "NoHTTPServer": "errors",
    "Server": "server",
    "ShutdownTimeout": "errors",
    "StreamableHTTPHandler": "asgi.handler",
    "Transport": "transport",
}

__all__ = [
    "InvalidEndpoint",
    "InvalidHTTPServer",
    "InvalidServer",
    "InvalidShutdownTimeout",
    "InvalidTransport",
    "ListenError",
    "NoApplication",
    "NoHTTPServer",
    "Server",
    "ShutdownTimeout",
    "StreamableHTTPHandler",
    "Transport",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
