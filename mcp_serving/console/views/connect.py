"""Connect a client: its configuration with the address of this site, and a token where the site has tokens."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from mcp_serving import sdk
from mcp_serving.console.access import console_view
from mcp_serving.console.pages import page
from mcp_serving.console.served import mounts_of_server, server
from mcp_serving.console.views.overview import access_in_words
from mcp_serving.inspection.client_configurations import CLIENTS, Endpoint, slug
from mcp_serving.tools.server import MCPServer

if TYPE_CHECKING:
    from mcp_serving.asgi.handler import StreamableHTTPHandler

LIFETIME = timedelta(days=90)
PLACEHOLDER = "YOUR_TOKEN"


@require_http_methods(["GET", "POST"])
@console_view
async def connect_a_client(request: HttpRequest) -> HttpResponse:
    handlers = {request.build_absolute_uri(path): each for each in mounts_of_server() for path in each.paths}
    context: dict[str, Any] = {
        "addresses": [{"url": url, "access": access_in_words(each)[0]} for url, each in handlers.items()],
        "has_tokens": apps.is_installed("mcp_serving.tokens"),
        "has_sign_in": apps.is_installed("mcp_serving.oauth"),
        "may_add_tokens": await sync_to_async(request.user.has_perm)("mcp_tokens.add_token"),
        "days": LIFETIME.days,
    }
    asked = request.POST.get("url") or request.GET.get("url")
    url = asked if asked in handlers else next(iter(handlers), None)
    scopes = _scopes(handlers[url]) if url is not None else []
    context["scopes"] = scopes
    token = None
    if request.method == "POST":
        if not (context["has_tokens"] and context["may_add_tokens"]):
            raise PermissionDenied(_("You may not create tokens."))
        try:
            context["token_row"], token = await sync_to_async(_issue)(request, scopes)
        except ValidationError as error:
            context["error"] = " ".join(error.messages)
    if url is not None:
        needs_token = handlers[url].access.callers.with_token
        shown = token or (PLACEHOLDER if needs_token and context["has_tokens"] and not context["has_sign_in"] else None)
        context |= {"url": url, "token": token, "needs_token": needs_token, "clients": _clients(url, shown)}
    return await page(request, "connect.html", context, section="connect", status=422 if "error" in context else 200)


def _scopes(handler: StreamableHTTPHandler) -> list[str]:
    """Those that the address needs, and those of its tools: a token from here may do what its user may."""
    of_tools = handler.mcp.scopes.all() if isinstance(handler.mcp, MCPServer) else []
    return list(dict.fromkeys([*handler.access.callers.scopes, *of_tools]))


def _issue(request: HttpRequest, scopes: Iterable[str]) -> tuple[Any, str]:
    """A token for the user of the page, and for nobody else, with these scopes."""
    tokens: Any = apps.get_model("mcp_tokens", "Token")._default_manager
    name = request.POST.get("name", "").strip() or _("made in the console")
    row, text = tokens.issue(request.user, name=name[:100], scopes=scopes, expires=timezone.now() + LIFETIME)
    return row, text


def _clients(url: str, token: str | None) -> list[dict[str, Any]]:
    name = slug(sdk.low_level(server()).name)
    endpoint = Endpoint(url, token)
    return [
        {
            "key": client.key,
            "label": client.label,
            "file": client.file_in_words or _shown(client.path()),
            "text": client.text(name, endpoint),
            "command": client.shell(name, endpoint),
            "note": client.endpoint_note,
        }
        for client in CLIENTS.values()
    ]


def _shown(path: Path) -> str:
    """The path on the machine of the reader, whose home is not that of the server."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)
