"""What the pages of the console have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from mcp_serving import sdk
from mcp_serving.console.access import may_change_users
from mcp_serving.console.served import client_for, is_asgi, server
from mcp_serving.inspection.catalog import Catalog, Offered, catalog_of

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

VIEW_AS = "mcp_console_view_as"
"""The key in the session: the primary key of the user whose lists are shown."""


@dataclass(frozen=True)
class Viewer:
    """Who looks at the console, and whose lists are shown."""

    user: Any
    viewed: AbstractBaseUser | None = None

    @property
    def shown(self) -> Any:
        """The user whose tools, resources and prompts are listed."""
        return self.viewed or self.user


async def viewer_of(request: HttpRequest) -> Viewer:
    key = await request.session.aget(VIEW_AS)
    if key is None or not await sync_to_async(may_change_users)(request.user):
        return Viewer(request.user)
    viewed = await get_user_model()._default_manager.filter(pk=key).afirst()
    return Viewer(request.user, viewed)


async def catalog_for(request: HttpRequest, viewer: Viewer) -> Catalog:
    """What the server offers to the user whose lists are shown."""
    async with client_for(request, viewer.shown) as client:
        return await catalog_of(client)


async def offered_or_404(request: HttpRequest, viewer: Viewer, kind: str, name: str) -> Offered:
    catalog = await catalog_for(request, viewer)
    found = next((each for each in catalog.named(name) if each.kind == kind), None)
    if found is None:
        raise Http404(_("There is no “%(name)s” that %(user)s may use.") % {"name": name, "user": viewer.shown})
    return found


async def page(
    request: HttpRequest, template: str, context: dict[str, Any] | None = None, *, section: str, status: int = 200
) -> HttpResponse:
    """A page, rendered in a thread: a context processor of the project may use the ORM."""
    low_level = sdk.low_level(server())
    base = {
        "section": section,
        "server_title": low_level.title or low_level.name,
        "server_version": low_level.version,
        "viewer": await viewer_of(request),
        "may_view_as": await sync_to_async(may_change_users)(request.user),
        "is_asgi": is_asgi(request),
    }
    return await sync_to_async(render)(request, f"mcp_console/{template}", {**base, **(context or {})}, status=status)


async def fragment(request: HttpRequest, template: str, context: dict[str, Any]) -> str:
    """A part of a page, for a script that puts it in its place."""
    html: str = await sync_to_async(render_to_string)(f"mcp_console/{template}", context, request)
    return html
