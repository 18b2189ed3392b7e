"""The system check of the app."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from django.core.checks import CheckMessage, Error

LOWEST = (1, 30)
"""The first version of opentelemetry-api with boundaries for the buckets of a histogram."""


def check_api(**_: Any) -> list[CheckMessage]:
    """Report an API that is too old. The MCP SDK itself accepts older ones."""
    installed, needed = version("opentelemetry-api"), ".".join(map(str, LOWEST))
    if tuple(int(part) for part in installed.split(".")[:2]) >= LOWEST:
        return []
    return [
        Error(
            f"mcp_serving.otel needs opentelemetry-api {needed} or later; {installed} is installed.",
            hint="Install it with: pip install --upgrade 'mcp-serving[otel]'.",
            id="mcp_otel.E001",
        )
    ]
