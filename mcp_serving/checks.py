from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info

from mcp_serving import conf
from mcp_serving.shadowing import sdk_problem


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
                f"ATOMIC_REQUESTS is on for {', '.join(map(repr, atomic))}, but an MCP call is not a Django view: "
                "no transaction is opened around it.",
                hint="Use transaction.atomic() in the tools that need one.",
                id="mcp_serving.I001",
            )
        )
    serves_http = isinstance(getattr(settings, "MCP_SERVING", None), dict) and "HTTP_SERVER" in settings.MCP_SERVING
    if serves_http and not (apps.is_installed("daphne") and getattr(settings, "ASGI_APPLICATION", None)):
        found.append(
            Info(
                "manage.py runserver serves WSGI in this project: the MCP endpoint is not there.",
                hint="Put 'daphne' at the top of INSTALLED_APPS and set ASGI_APPLICATION, or use "
                "manage.py runmcp --transport http.",
                id="mcp_serving.I002",
            )
        )
    return found


def check_import(**_: Any) -> list[CheckMessage]:
    """With ``check --deploy``: import what the settings name."""
    if conf.problems() or sdk_problem():
        return []  # told already
    configuration = conf.configuration()
    found: list[CheckMessage] = []
    if configuration.server is not None:
        try:
            conf.load_server(configuration.server)
        except Exception as error:
            found.append(Error(f"MCP_SERVING['SERVER']: {error}", id="mcp_serving.E003"))
    if configuration.http_server is not None:
        try:
            conf.load(configuration.http_server)
        except Exception as error:
            found.append(Error(f"MCP_SERVING['HTTP_SERVER']: {error}", id="mcp_serving.E004"))
    return found
