"""The overview: the server, its mounts, this worker, versions, and problems."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import sync_to_async
from django.core import checks
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from mcp_serving import channel_layer, current_request, sdk
from mcp_serving.console.access import console_view
from mcp_serving.console.pages import catalog_for, page, viewer_of
from mcp_serving.console.served import is_asgi, mounts, server
from mcp_serving.runtime import runtimes

if TYPE_CHECKING:
    from mcp_serving.asgi.handler import StreamableHTTPHandler

TAGS = ("mcp_serving", "mcp_tokens", "mcp_oauth", "mcp_console")


@dataclass(frozen=True)
class Mount:
    """One address, and who may call there."""

    url: str
    access: str
    is_open: bool
    options: list[str]
    other_server: str


@require_GET
@console_view
async def overview(request: HttpRequest) -> HttpResponse:
    viewer = await viewer_of(request)
    low_level = sdk.low_level(server())
    context = {
        "server": low_level,
        "catalog": await catalog_for(request, viewer),
        "mounts": [_mount(request, handler, path) for handler in mounts() for path in handler.paths],
        "calls": _calls() if is_asgi(request) else [],
        "process": os.getpid(),
        "sessions": sum(handler.session_count for handler in mounts()) if is_asgi(request) else 0,
        "layer": await sync_to_async(_layer)(),
        "versions": [
            ("mcp-serving", version("mcp-serving")),
            ("mcp", version("mcp")),
            ("Django", django.get_version()),
            ("Channels", version("channels")),
            ("Python", platform.python_version()),
        ],
        "problems": await sync_to_async(_problems)(),
    }
    return await page(request, "overview.html", context, section="overview")


def _calls() -> list[str]:
    """What is in flight in this worker, without the request for the page itself."""
    own = current_request.get().in_flight
    names = [name for runtime in runtimes() for name in runtime.in_flight.names]
    if own is not None and own.name in names:
        names.remove(own.name)
    return names


def _mount(request: HttpRequest, handler: StreamableHTTPHandler, path: str) -> Mount:
    is_ours = handler.server is sdk.low_level(server())
    words, is_open = access_in_words(handler)
    return Mount(
        url=request.build_absolute_uri(path),
        access=words,
        is_open=is_open,
        options=[name for name in ("stateless_http", "json_response") if handler.options.get(name)],
        other_server="" if is_ours else handler.server.title or handler.server.name,
    )


def access_in_words(handler: StreamableHTTPHandler) -> tuple[str, bool]:
    """Who may call a handler; and whether that is everybody."""
    callers = handler.access.callers
    if callers.everybody:
        return _("everybody"), True
    if not handler.access.is_configured:
        return _("everybody while DEBUG is on, then nobody"), True
    ways = []
    if callers.logged_in:
        ways.append(_("users who are logged in"))
    if callers.with_token:
        ways.append(_("clients with a bearer token"))
    words = _(" and ").join(ways)
    if callers.scopes:
        words += ngettext(", with the scope %(scopes)s", ", with the scopes %(scopes)s", len(callers.scopes)) % {
            "scopes": ", ".join(callers.scopes)
        }
    return words, False


def _layer() -> dict[str, Any]:
    problem = channel_layer.problem()
    layer = None if problem else channel_layer.channel_layer()
    return {
        "problem": problem or channel_layer.health.reason,
        "name": channel_layer.layer_name(),
        "kind": f"{type(layer).__module__}.{type(layer).__qualname__}" if layer is not None else "",
        "is_shared": layer is not None and channel_layer.reaches_other_processes(layer),
    }


def _problems() -> list[dict[str, Any]]:
    """What the system checks found, the serious ones first; those for deployment included."""
    found = checks.run_checks(tags=TAGS, include_deployment_checks=True)
    words = {checks.ERROR: (_("error"), "bad"), checks.WARNING: (_("warning"), "warn")}
    return [
        {
            "id": each.id,
            "level": words.get(each.level, (_("note"), "plain"))[0],
            "tone": words.get(each.level, (_("note"), "plain"))[1],
            "text": each.msg,
            "hint": each.hint,
        }
        for each in sorted(found, key=lambda each: -each.level)
    ]
