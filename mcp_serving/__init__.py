"""Serve the Model Context Protocol from a Django project: over stdio, over Daphne, or over both.

A name is imported when it is first used, so that other management commands of a project with this app in
``INSTALLED_APPS`` load neither the MCP SDK nor Daphne.
"""

# In one folder because the modules at the top are what the folders share, and each is too small for a folder.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_serving.asgi.handler import StreamableHTTPHandler
    from mcp_serving.current_request import is_preview
    from mcp_serving.errors import (
        AccessNotStated,
        InvalidEndpoint,
        InvalidHTTPServer,
        InvalidServer,
        InvalidShutdownTimeout,
        InvalidTransport,
        ListenError,
        NoApplication,
        NoElicitation,
        NoHTTPServer,
        ShutdownTimeout,
        UserCanceled,
        UserDeclined,
    )
    from mcp_serving.notifications.bus import ChannelLayerBus
    from mcp_serving.notifications.model_signals import notify_on_change
    from mcp_serving.notifications.publish import (
        anotify_prompts_changed,
        anotify_resource_updated,
        anotify_resources_changed,
        anotify_tools_changed,
        notify_prompts_changed,
        notify_resource_updated,
        notify_resources_changed,
        notify_tools_changed,
    )
    from mcp_serving.server import Server
    from mcp_serving.sessions.memory_event_store import InMemoryEventStore
    from mcp_serving.sessions.redis_event_store import RedisEventStore
    from mcp_serving.tools.registry import Registry
    from mcp_serving.tools.server import MCPServer
    from mcp_serving.transport import Transport
    from mcp_serving.users import get_user

_MODULES = {
    "AccessNotStated": "errors",
    "ChannelLayerBus": "notifications.bus",
    "InMemoryEventStore": "sessions.memory_event_store",
    "InvalidEndpoint": "errors",
    "InvalidHTTPServer": "errors",
    "InvalidServer": "errors",
    "InvalidShutdownTimeout": "errors",
    "InvalidTransport": "errors",
    "ListenError": "errors",
    "MCPServer": "tools.server",
    "NoApplication": "errors",
    "NoElicitation": "errors",
    "NoHTTPServer": "errors",
    "RedisEventStore": "sessions.redis_event_store",
    "Registry": "tools.registry",
    "Server": "server",
    "ShutdownTimeout": "errors",
    "StreamableHTTPHandler": "asgi.handler",
    "Transport": "transport",
    "UserCanceled": "errors",
    "UserDeclined": "errors",
    "anotify_prompts_changed": "notifications.publish",
    "anotify_resource_updated": "notifications.publish",
    "anotify_resources_changed": "notifications.publish",
    "anotify_tools_changed": "notifications.publish",
    "get_user": "users",
    "is_preview": "current_request",
    "notify_on_change": "notifications.model_signals",
    "notify_prompts_changed": "notifications.publish",
    "notify_resource_updated": "notifications.publish",
    "notify_resources_changed": "notifications.publish",
    "notify_tools_changed": "notifications.publish",
}

__all__ = [
    "AccessNotStated",
    "ChannelLayerBus",
    "InMemoryEventStore",
    "InvalidEndpoint",
    "InvalidHTTPServer",
    "InvalidServer",
    "InvalidShutdownTimeout",
    "InvalidTransport",
    "ListenError",
    "MCPServer",
    "NoApplication",
    "NoElicitation",
    "NoHTTPServer",
    "RedisEventStore",
    "Registry",
    "Server",
    "ShutdownTimeout",
    "StreamableHTTPHandler",
    "Transport",
    "UserCanceled",
    "UserDeclined",
    "anotify_prompts_changed",
    "anotify_resource_updated",
    "anotify_resources_changed",
    "anotify_tools_changed",
    "get_user",
    "is_preview",
    "notify_on_change",
    "notify_prompts_changed",
    "notify_resource_updated",
    "notify_resources_changed",
    "notify_tools_changed",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
