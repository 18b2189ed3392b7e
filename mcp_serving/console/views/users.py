"""View as another user: the lists that this user would see. Nothing is called on their behalf."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from mcp_serving.console.access import console_view, may_change_users
from mcp_serving.console.pages import VIEW_AS, page
from mcp_serving.users import user_by_name


@require_http_methods(["GET", "POST"])
@console_view
async def view_as(request: HttpRequest) -> HttpResponse:
    if not await sync_to_async(may_change_users)(request.user):
        raise PermissionDenied(_("Who may change users may see what they see."))
    if request.method == "POST" and "stop" in request.POST:
        await request.session.apop(VIEW_AS, None)
        return redirect("mcp_console:tools")
    context: dict[str, str] = {}
    if request.method == "POST":
        name = request.POST.get("username", "")
        user = await sync_to_async(user_by_name)(name)
        if user is None:
            context = {"username": name, "error": _("There is no user “%(name)s”.") % {"name": name}}
        else:
            await request.session.aset(VIEW_AS, str(user.pk))
            return redirect("mcp_console:tools")
    return await page(request, "view_as.html", context, section="view_as", status=422 if context else 200)
