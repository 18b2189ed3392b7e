"""MCP Apps: a ``ui://`` resource in a sandboxed frame, and what it asks its host for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_GET, require_POST
from mcp import MCPError
from mcp.server.apps import APP_MIME_TYPE
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, TextResourceContents

from mcp_serving.console.access import console_view
from mcp_serving.console.pages import viewer_of
from mcp_serving.console.served import client_for
from mcp_serving.inspection.catalog import catalog_of

if TYPE_CHECKING:
    from mcp import Client

_SOURCE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:/*_[]")


@require_GET
@xframe_options_sameorigin
@console_view
async def app_frame(request: HttpRequest) -> HttpResponse:
    """The document of an app. Its origin is opaque: it sees no cookie, and can ask the site for nothing."""
    uri = request.GET.get("uri", "")
    viewer = await viewer_of(request)
    if viewer.viewed is not None or not uri.startswith("ui://"):
        raise Http404(_("There is no such app."))
    try:
        async with client_for(request, request.user) as client:
            result = await client.read_resource(uri)
    except MCPError as error:
        raise Http404(str(error)) from error
    first = result.contents[0] if result.contents else None
    if not isinstance(first, TextResourceContents) or first.mime_type != APP_MIME_TYPE:
        raise Http404(_("This resource is not an app."))
    return HttpResponse(first.text, headers={"Content-Security-Policy": app_policy(first.meta)})


def app_policy(meta: dict[str, Any] | None) -> str:
    """The CSP of an app: scripts of its own, and the domains that its resource declares."""
    interface = (meta or {}).get("ui") or {}
    declared = interface.get("csp") or {} if isinstance(interface, dict) else {}

    def domains(key: str) -> str:
        given = declared.get(key) or ()
        return "".join(f" {each}" for each in given if isinstance(each, str) and set(each) <= _SOURCE_CHARACTERS)

    resources = domains("resourceDomains")
    return (
        "sandbox allow-scripts allow-forms; default-src 'none'; "
        f"script-src 'unsafe-inline'{resources}; style-src 'unsafe-inline'{resources}; "
        f"img-src data: blob:{resources}; font-src data:{resources}; media-src data: blob:{resources}; "
        f"connect-src {domains('connectDomains').strip() or chr(39) + 'none' + chr(39)}; "
        f"frame-src {domains('frameDomains').strip() or chr(39) + 'none' + chr(39)}; "
        "base-uri 'none'; frame-ancestors 'self'"
    )


@require_POST
@console_view
async def app_request(request: HttpRequest) -> JsonResponse:
    """A call or a read that an app asks for, with the permissions of the user who looks at it."""
    viewer = await viewer_of(request)
    if viewer.viewed is not None:
        return JsonResponse({"error": {"code": INVALID_REQUEST, "message": _("Listing only.")}}, status=403)
    try:
        params = json.loads(request.POST.get("params", "{}"))
        method = request.POST.get("method", "")
        async with client_for(request, request.user) as client:
            if method == "tools/call":
                await _must_be_for_apps(client, str(params["name"]))
                result: Any = await client.call_tool(str(params["name"]), params.get("arguments") or {})
            elif method == "resources/read":
                result = await client.read_resource(str(params["uri"]))
            else:
                return _refused(METHOD_NOT_FOUND, "Method not found")
    except MCPError as error:
        return _refused(error.error.code, error.error.message)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _refused(INVALID_PARAMS, "Invalid params")
    return JsonResponse({"result": result.model_dump(mode="json", by_alias=True, exclude_none=True)})


async def _must_be_for_apps(client: Client, name: str) -> None:
    """Refuse a tool that is for the model alone.

    Raises:
        MCPError: there is no tool with this name that an app may call.
    """
    for tool in (await catalog_of(client)).tools:
        interface: Any = (getattr(tool.declared, "meta", None) or {}).get("ui") or {}
        visibility = interface.get("visibility") if isinstance(interface, dict) else None
        if tool.name == name and (visibility is None or "app" in visibility):
            return
    raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}")


def _refused(code: int, message: str) -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message}})
