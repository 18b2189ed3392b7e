from __future__ import annotations

import os
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info
from django.core.checks import Warning as CheckWarning

from mcp_serving import conf, loading
from mcp_serving.sdk_installation import sdk_problem


def check_settings(**_: Any) -> list[CheckMessage]:
    """``MCP_SERVING`` and the SDK, as far as that can be told without importing either."""
    found: list[CheckMessage] = [Error(problem, id="mcp_serving.E001") for problem in conf.problems()]
    if problem := sdk_problem():
        found.append(Error(problem, id="mcp_serving.E002"))
    return found


def check_project(**_: Any) -> list[CheckMessage]:
    """What is right in itself, and surprises people all the same."""
    found: list[CheckMessage] = []
    atomic = [alias for alias, database in settings.DATABASES.items() if database.get("ATOMIC_REQUESTS")]
    if atomic:
        found.append(
            Info(
                f"ATOMIC_REQUESTS is on for {', '.join(map(repr, atomic))}, but an MCP call is not a Django view: a "
                "transaction is opened around each sync function of an mcp_serving.MCPServer, and around nothing else.",
                hint="Async tools, and a server of the SDK's own class, need transaction.atomic() where it matters.",
                id="mcp_serving.I001",
            )
        )
    serves_http = isinstance(getattr(settings, "MCP_SERVING", None), dict) and "HTTP_SERVER" in settings.MCP_SERVING
    if serves_http and not (apps.is_installed("daphne") and getattr(settings, "ASGI_APPLICATION", None)):
        found.append(
            Info(
                "manage.py runserver does not serve the MCP endpoint of this project: it is not Daphne's, or has no "
                "ASGI_APPLICATION.",
                hint="Put 'daphne' at the top of INSTALLED_APPS and set ASGI_APPLICATION, or use "
                "manage.py runmcp --transport http.",
                id="mcp_serving.I002",
            )
        )
    return found


def check_import(**_: Any) -> list[CheckMessage]:
    """With ``check --deploy``: import what the settings name, and look at what comes of it."""
    if conf.problems() or sdk_problem():
        return []  # told already
    configuration = conf.configuration()
    found: list[CheckMessage] = []
    server = None
    if configuration.server is not None:
        try:
            server = loading.load_server(configuration.server)
        except Exception as error:
            found.append(Error(f"MCP_SERVING['SERVER']: {error}", id="mcp_serving.E003"))
        else:
            found += _check_server(configuration.server, server)
    # The handlers exist once the routers are imported.
    routers = [
        ("MCP_SERVING['HTTP_SERVER']", configuration.http_server, "mcp_serving.E004"),
        ("ASGI_APPLICATION", getattr(settings, "ASGI_APPLICATION", None), "mcp_serving.E005"),
    ]
    for name, path, number in routers:
        if path is not None:
            try:
                loading.load(path)
            except Exception as error:
                found.append(Error(f"{name}: {error}", id=number))
    return found + _check_handlers(server) + _check_layer()


def _check_server(path: str, server: Any) -> list[CheckMessage]:
    from mcp_serving.tools.server import MCPServer

    if not isinstance(server, MCPServer):
        return [
            Info(
                f"{path} is a server of the SDK's own class: its sync functions run in threads that keep their "
                "database connections open, and it knows no users, permissions and questions.",
                hint="Use mcp_serving.MCPServer, which is a subclass.",
                id="mcp_serving.I003",
            )
        ]
    return []


def _check_handlers(server: Any) -> list[CheckMessage]:
    from mcp_serving import sdk
    from mcp_serving.asgi import lifecycle

    found: list[CheckMessage] = [
        Error(handler.access_problem, id="mcp_serving.E006")
        for handler in lifecycle.handlers()
        if handler.access_problem
    ]
    gated = getattr(server, "gated_tools", [])
    if gated:
        found += [
            CheckWarning(
                f"The handler at {handler.place} has {option}=True: clients up to 2025-11-25 cannot use "
                f"{', '.join(gated)} through it, which ask the user first.",
                hint=f"Leave out {option}, or mount a second handler without it for these clients.",
                id="mcp_serving.W001",
            )
            for handler in lifecycle.handlers_of(sdk.low_level(server))
            for option in ("stateless_http", "json_response")
            if handler.options.get(option)
        ]
    return found


_WORKERS = ("WEB_CONCURRENCY", "GRANIAN_WORKERS")
"""Where web servers look for how many workers to start: uvicorn and gunicorn, granian. Daphne and runmcp have one."""


def _check_layer() -> list[CheckMessage]:
    from mcp_serving import channel_layer

    if problem := channel_layer.problem():
        return [Error(problem, id="mcp_serving.E007")]
    layer = channel_layer.channel_layer()
    if layer is not None and channel_layer.reaches_other_processes(layer):
        return []
    found: list[CheckMessage] = []
    if layer is not None and not settings.DEBUG:
        found.append(
            CheckWarning(
                f"The channel layer {channel_layer.layer_name()!r} is the in-memory one, which reaches no other "
                "process: a notification reaches only the clients of the process that sends it.",
                hint="Use channels_redis, or no channel layer where there is one process.",
                id="mcp_serving.W003",
            )
        )
    return found + _check_workers()


def _check_workers() -> list[CheckMessage]:
    """Sessions that only one of several workers knows, as far as the environment tells that there are several."""
    from mcp_serving.asgi import lifecycle

    several = [f"{name}={os.environ[name]}" for name in _WORKERS if _is_several(os.environ.get(name, ""))]
    return [
        CheckWarning(
            f"{several[0]} starts several workers, which have no channel layer in common: of the sessions that clients "
            f"up to 2025-11-25 open at {handler.place}, each is known to one worker, and to the others 404.",
            hint="Put channels_redis into CHANNEL_LAYERS, have a proxy lead each client to the same worker, or give "
            "the handler stateless_http=True.",
            id="mcp_serving.W002",
        )
        for handler in lifecycle.handlers()
        if several and not handler.options.get("stateless_http")
    ]


def _is_several(workers: str) -> bool:
    return workers.isdecimal() and int(workers) > 1
