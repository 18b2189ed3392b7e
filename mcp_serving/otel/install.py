"""Puts OpenTelemetry into the hooks of the package. It does not load the MCP SDK before a server is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context, propagate

from mcp_serving import instruments
from mcp_serving.otel import gauges

if TYPE_CHECKING:
    from mcp.server.context import ServerMiddleware
    from mcp.server.lowlevel.server import Server as LowLevelServer


def install() -> None:
    """Measure all servers of this process. Calling it again changes nothing."""
    if _make_middleware not in instruments.middleware:
        instruments.middleware.append(_make_middleware)
        instruments.carriers.append(instruments.Carrier(_save, _restore))
        gauges.create()


def _make_middleware(server: LowLevelServer[Any]) -> ServerMiddleware[Any]:
    from mcp_serving.otel.operations import OperationMiddleware

    return OperationMiddleware(server)


def _save() -> dict[str, str]:
    carried: dict[str, str] = {}
    propagate.inject(carried)
    return carried


def _restore(carried: dict[str, str]) -> None:
    context.attach(propagate.extract(carried))
