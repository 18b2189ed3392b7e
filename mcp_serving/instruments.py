"""Hooks for the app ``mcp_serving.otel``. They are empty, and cost nothing, unless the app is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server.context import ServerMiddleware
    from mcp.server.lowlevel.server import Server as LowLevelServer


@dataclass(frozen=True)
class Carrier:
    """Carries a context to the worker that has the session of a relayed request."""

    save: Callable[[], dict[str, str]]
    """Returns the context of the running task."""
    restore: Callable[[dict[str, str]], object]
    """Puts it into the running task of another process."""


middleware: list[Callable[[LowLevelServer[Any]], ServerMiddleware[Any]]] = []
"""Each makes an MCP middleware for a server. It runs within the span that the SDK makes of a message."""

carriers: list[Carrier] = []
