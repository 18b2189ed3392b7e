"""Resources and resource templates: the list, a viewer for each MIME type, downloads."""

from __future__ import annotations

import base64
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import content_disposition_header, urlencode
from django.utils.translation import gettext as _
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_GET
from mcp import MCPError
from mcp.shared.uri_template import UriTemplate
from mcp_types import ReadResourceResult, TextResourceContents

from mcp_serving.console.access import console_view
from mcp_serving.console.pages import catalog_for, offered_or_404, page, viewer_of
from mcp_serving.console.rendering import contents, snippets
from mcp_serving.console.served import client_for, server
from mcp_serving.inspection.catalog import declaration_of

SANDBOX = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
"""For the preview of a resource that is HTML: no script, no request to anywhere."""


@require_GET
@console_view
async def resource_list(request: HttpRequest) -> HttpResponse:
    viewer = await viewer_of(request)
    catalog = await catalog_for(request, viewer)
    return await page(
        request,
        "resources.html",
        {"resources": catalog.resources, "templates": catalog.templates},
        section="resources",
    )


async def _contents(request: HttpRequest) -> tuple[str, ReadResourceResult | None, MCPError | None]:
    viewer = await viewer_of(request)
    uri = request.GET.get("uri", "")
    if not uri or viewer.viewed is not None:
        raise Http404(_("Nothing is read while you see the console as another user does."))
    try:
        async with client_for(request, request.user) as client:
            return uri, await client.read_resource(uri), None
    except MCPError as error:
        return uri, None, error


@require_GET
@console_view
async def read(request: HttpRequest) -> HttpResponse:
    viewer = await viewer_of(request)
    uri, result, error = await _contents(request)
    catalog = await catalog_for(request, viewer)
    offered = next(iter(catalog.named(uri)), None) or next(
        (each for each in catalog.templates if UriTemplate.parse(each.name).match(uri) is not None), None
    )
    context = {
        "uri": uri,
        "offered": offered,
        "declaration": declaration_of(server(), offered) if offered else None,
        "parts": [
            contents.part_of_resource(each, f"result.contents.{number}")
            for number, each in enumerate(result.contents if result else ())
        ],
        "error": error.error if error else None,
        "json": snippets.response_json(result) if result else snippets.error_json(error.error) if error else "",
    }
    return await page(request, "resource.html", context, section="resources", status=404 if error else 200)


@require_GET
@console_view
async def template(request: HttpRequest) -> HttpResponse:
    """The form of a template; with its variables filled in, the resource."""
    viewer = await viewer_of(request)
    offered = await offered_or_404(request, viewer, "template", request.GET.get("uri", ""))
    parsed = UriTemplate.parse(offered.name)
    given = {name: request.GET.get(f"variable-{name}", "") for name in parsed.variable_names}
    if all(given.values()):
        uri = parsed.expand(given)
        return redirect(f"{reverse('mcp_console:read')}?{urlencode({'uri': uri})}")
    context = {"offered": offered, "variables": given, "declaration": declaration_of(server(), offered)}
    return await page(request, "template.html", context, section="resources")


@require_GET
@console_view
async def download(request: HttpRequest) -> HttpResponse:
    uri, result, error = await _contents(request)
    if result is None or not result.contents:
        raise Http404(str(error))
    first: Any = result.contents[0]
    data = first.text.encode() if isinstance(first, TextResourceContents) else base64.b64decode(first.blob)
    name = uri.rstrip("/").rpartition("/")[2] or "resource"
    header = content_disposition_header(as_attachment=True, filename=name)
    return HttpResponse(
        data, content_type="application/octet-stream", headers={"Content-Disposition": header or "attachment"}
    )


@require_GET
@xframe_options_sameorigin
@console_view
async def frame(request: HttpRequest) -> HttpResponse:
    """A resource that is HTML, for a frame: it can neither run a script nor reach the site."""
    _uri, result, error = await _contents(request)
    first = result.contents[0] if result and result.contents else None
    if not isinstance(first, TextResourceContents) or not (first.mime_type or "").startswith("text/html"):
        raise Http404(str(error))
    return HttpResponse(first.text, headers={"Content-Security-Policy": SANDBOX})
