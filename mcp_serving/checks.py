"""The system checks of ``mcp_serving``. docs/reference/checks.md has the table of their ids."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from mcp_serving import conf, loading
from mcp_serving.sdk_installation import sdk_problem

if TYPE_CHECKING:
    from mcp_serving.tools.server import MCPServer

LONGEST_TOOL_NAME = 64
"""Characters of a tool's name that all well-known clients and models accept. The protocol allows 128."""


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check ``MCP_SERVING`` and the installed SDK, without importing the server or the SDK."""
    found: list[CheckMessage] = [Error(problem, id="mcp_serving.E001") for problem in loading.settings_problems()]
    if problem := sdk_problem():
        found.append(Error(problem, id="mcp_serving.E002"))
    return found


def check_project(**_: Any) -> list[CheckMessage]:
    """Check settings that are valid, but do not have the effect that people expect."""
    found: list[CheckMessage] = []
    atomic = [alias for alias, database in settings.DATABASES.items() if database.get("ATOMIC_REQUESTS")]
    if atomic:
        found.append(
            Info(
                f"ATOMIC_REQUESTS is on for {', '.join(map(repr, atomic))}. An MCP call is not a Django view: only the "
                "sync functions of an mcp_serving.MCPServer run in a transaction.",
                hint="In async tools, and in a server of the SDK's own class, use transaction.atomic() yourself.",
                id="mcp_serving.I001",
            )
        )
    serves_http = isinstance(getattr(settings, "MCP_SERVING", None), dict) and "HTTP_SERVER" in settings.MCP_SERVING
    if serves_http and not (apps.is_installed("daphne") and getattr(settings, "ASGI_APPLICATION", None)):
        found.append(
            Info(
                "manage.py runserver does not serve the MCP endpoint of this project: 'daphne' is not in "
                "INSTALLED_APPS, or ASGI_APPLICATION is not set.",
                hint="Put 'daphne' at the top of INSTALLED_APPS and set ASGI_APPLICATION, or use "
                "manage.py runmcp --transport http.",
                id="mcp_serving.I002",
            )
        )
    return found


def check_import(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """With ``check --deploy``: import the server and the routers that the settings name, and check them.

    Args:
        databases: the databases that a check may query, from ``check --database``.
    """
    if loading.settings_problems() or sdk_problem():
        return []  # check_settings reports them
    try:
        loading.discover()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="mcp_serving.E008")]
    configuration = conf.configuration()
    paths = [
        ("MCP_SERVING['SERVER']", configuration.server, "mcp_serving.E003", loading.load_server),
        # Importing the routers creates the handlers, which are checked below.
        ("MCP_SERVING['HTTP_SERVER']", configuration.http_server, "mcp_serving.E004", loading.load),
        ("ASGI_APPLICATION", getattr(settings, "ASGI_APPLICATION", None), "mcp_serving.E005", loading.load),
    ]
    loaded = {}
    for name, path, number, load in paths:
        try:
            loaded[name] = load(path) if path is not None else None
        except Exception as error:  # the other paths would fail for the same reason
            return [Error(f"{name}: {error}", id=number)]
    server = loaded["MCP_SERVING['SERVER']"]
    return [
        *_check_server(server),
        *check_declarations(server, databases or ()),
        *_check_registries(),
        *_check_handlers(server),
        *_check_layer(),
        *_check_cache(server),
        *_check_rates(server),
    ]


def _check_server(server: Any) -> list[CheckMessage]:
    from mcp_serving.tools.server import MCPServer

    if server is None or isinstance(server, MCPServer):
        return []
    return [
        Info(
            f"{conf.configuration().server} is a server of the SDK's own class: the threads of its sync functions keep "
            "their database connections open, and it does not support Django users, permissions and write tools.",
            hint="Use mcp_serving.MCPServer, which is a subclass.",
            id="mcp_serving.I003",
        )
    ]


def check_declarations(server: Any, databases: Sequence[str]) -> list[CheckMessage]:
    """Check the names and the permissions of tools, resources and prompts; ``runmcp`` prints this, too.

    Args:
        server: the server object. A server of the SDK's own class is not checked.
        databases: the databases that the check may query.
    """
    from mcp_serving.tools.server import MCPServer

    if not isinstance(server, MCPServer):
        return []
    return _check_names(server) + _check_permissions(server, databases)


def _check_names(server: MCPServer[Any]) -> list[CheckMessage]:
    return [
        CheckWarning(
            f"The name of the tool {name!r} has {len(name)} characters: clients and models that accept at most "
            f"{LONGEST_TOOL_NAME} cannot use it.",
            hint="Shorten the name. Some clients put the name of the server before it.",
            id="mcp_serving.W007",
        )
        for kind, name in sorted(server.declared)
        if kind == "tool" and len(name) > LONGEST_TOOL_NAME
    ]


def _check_permissions(server: MCPServer[Any], databases: Sequence[str]) -> list[CheckMessage]:
    """Warn of permissions that the database does not have."""
    required = [(kind, name, server.permission_of(kind, name)) for kind, name in sorted(server.declared)]
    named = [(kind, name, each) for kind, name, all_of in required if isinstance(all_of, tuple) for each in all_of]
    if not named or not apps.is_installed("django.contrib.auth"):
        return []
    from django.contrib.auth.models import Permission

    rows = Permission.objects.values_list("content_type__app_label", "codename")
    if rows.db not in databases:
        return []
    try:
        known = {f"{app}.{codename}" for app, codename in rows}
    except (DatabaseError, ImproperlyConfigured) as error:
        return [
            CheckWarning(
                f"The permissions of the tools cannot be looked up: {loading.in_one_line(error)}.",
                hint="Start the database, and run manage.py migrate.",
                id="mcp_serving.W008",
            )
        ]
    found: list[CheckMessage] = []
    for kind, name, permission in named:
        if permission not in known:
            close = get_close_matches(permission, known, n=1)
            found.append(
                CheckWarning(
                    f"The {kind} {name!r} needs the permission {permission!r}, which is not in the database: only "
                    "superusers can use it.",
                    hint=(f"Did you mean {close[0]!r}? " if close else "")
                    + "If an authentication backend of yours grants the permission, silence this check.",
                    id="mcp_serving.W008",
                )
            )
    return found


def _check_registries() -> list[CheckMessage]:
    """Warn of registries in the ``mcp`` modules of apps that no server includes."""
    from mcp_serving.tools.registry import Registry

    modules = [module for config in apps.get_app_configs() if (module := sys.modules.get(f"{config.name}.mcp"))]
    registries = {
        value: f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Registry)
    }
    return [
        CheckWarning(
            f"No server includes the registry {path}: clients do not see "
            f"{', '.join(each.name for each in registry.declarations)}.",
            hint="Include it in the module of the server: server.include(registry).",
            id="mcp_serving.W004",
        )
        for registry, path in registries.items()
        if registry.declarations and not registry.is_included
    ]


def _check_handlers(server: Any) -> list[CheckMessage]:
    from mcp_serving import sdk
    from mcp_serving.asgi import lifecycle

    found: list[CheckMessage] = [
        Error(handler.access_problem, id="mcp_serving.E006")
        for handler in lifecycle.handlers()
        if handler.access_problem
    ]
    write_tools = getattr(server, "write_tools", [])
    if write_tools:
        found += [
            CheckWarning(
                f"The handler at {handler.place} has {option}=True: clients up to 2025-11-25 cannot use "
                f"{', '.join(write_tools)} through it, because these tools ask the user first.",
                hint=f"Remove {option}, or mount a second handler without it for these clients.",
                id="mcp_serving.W001",
            )
            for handler in lifecycle.handlers_of(sdk.low_level(server))
            for option in ("stateless_http", "json_response")
            if handler.options.get(option)
        ]
    return found


_WORKERS = ("WEB_CONCURRENCY", "GRANIAN_WORKERS")
"""The environment variables with the number of workers: of uvicorn and gunicorn, and of granian. Daphne and runmcp
always have one worker."""


def _check_layer() -> list[CheckMessage]:
    from mcp_serving import channel_layer

    if problem := channel_layer.problem():
        return [Error(problem, id="mcp_serving.E007")]
    layer = channel_layer.channel_layer()
    if layer is not None and channel_layer.reaches_other_processes(layer):
        return _check_cost_of_relaying() if channel_layer.stores_messages(layer) else []
    found: list[CheckMessage] = []
    if layer is not None and not settings.DEBUG:
        found.append(
            CheckWarning(
                f"The channel layer {channel_layer.layer_name()!r} is the in-memory one, which reaches no other "
                "process: a notification reaches only the clients of the process that sends it.",
                hint="Use channels_redis. If there is only one process, remove the channel layer.",
                id="mcp_serving.W003",
            )
        )
    return found + _check_workers()


def _check_cost_of_relaying() -> list[CheckMessage]:
    from mcp_serving.asgi import lifecycle

    places = [handler.place for handler in lifecycle.handlers() if not handler.options.get("stateless_http")]
    if not places:
        return []
    return [
        Info(
            f"The handler at {', '.join(places)} has sessions. On channels_redis.core.RedisChannelLayer, a relayed "
            "request of a session costs up to 20 Redis commands, and more than twice the CPU time of a local one.",
            hint="Use channels_redis.pubsub.RedisPubSubChannelLayer, which needs 2 commands, or a proxy that routes "
            "each client to the same worker.",
            id="mcp_serving.I004",
        )
    ]


def _check_workers() -> list[CheckMessage]:
    """Warn of sessions that only one of several workers knows. The number of workers is read from the environment."""
    from mcp_serving.asgi import lifecycle

    several = _several_workers()
    return [
        CheckWarning(
            f"{several} starts several workers, which share no channel layer. Clients up to 2025-11-25 open "
            f"sessions at {handler.place}: only one worker knows a session, the others answer 404.",
            hint="Configure channels_redis in CHANNEL_LAYERS, or let a proxy route each client to the same worker, or "
            "set stateless_http=True on the handler.",
            id="mcp_serving.W002",
        )
        for handler in lifecycle.handlers()
        if several and not handler.options.get("stateless_http")
    ]


def _check_cache(server: Any) -> list[CheckMessage]:
    """Warn of write tools in several workers whose caches are their own."""
    from mcp_serving.tools.request_state import has_shared_cache

    several = _several_workers()
    if not several or not getattr(server, "write_tools", []) or has_shared_cache():
        return []
    return [
        CheckWarning(
            f"{several} starts several workers, each with a default cache of its own: an answer to the question of "
            f"{', '.join(server.write_tools)} is refused if another worker receives it.",
            hint="Configure a cache that the workers share in CACHES['default'], such as Django's RedisCache.",
            id="mcp_serving.W005",
        )
    ]


def _check_rates(server: Any) -> list[CheckMessage]:
    """Check that the storage of rates can be made, and that several workers share it."""
    from mcp_serving.asgi import lifecycle
    from mcp_serving.rate_limits import storage

    if not getattr(server, "rates", None) and not any(handler.rate for handler in lifecycle.handlers()):
        return []
    if problem := storage.problem():
        return [Error(problem, id="mcp_serving.E009")]
    several = _several_workers()
    if not several or not storage.uses_memory():
        return []
    return [
        CheckWarning(
            f"{several} starts several workers, and each counts calls in its own memory: a caller may make the rate "
            "of each handler and tool once for each worker.",
            hint="Set MCP_SERVING['RATE_LIMIT_STORAGE'] to a storage that they share, such as 'redis://127.0.0.1:6379/0'.",
            id="mcp_serving.W006",
        )
    ]


def _several_workers() -> str | None:
    """``WEB_CONCURRENCY=4``, if the environment asks for several workers."""
    numbers = {name: os.environ.get(name, "") for name in _WORKERS}
    return next(
        (f"{name}={number}" for name, number in numbers.items() if number.isdecimal() and int(number) > 1), None
    )
