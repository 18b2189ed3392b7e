"""The page on which users see which clients they have connected, and disconnect them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect
from django.views.generic import ListView, View
from oauth2_provider.scopes import get_scopes_backend

from mcp_serving.oauth.models import ConnectedApp
from mcp_serving.oauth.views.authorization import readable_host, readable_name
from mcp_serving.oauth.views.browsers import only_as_a_page
from mcp_serving.security.login import login_url


class _OfTheUser(LoginRequiredMixin):
    request: HttpRequest

    def get_login_url(self) -> str:
        return login_url()

    def get_queryset(self) -> Any:
        user: Any = self.request.user  # who is logged in
        return ConnectedApp.objects.filter(user=user).with_tokens().select_related("application")


@method_decorator([only_as_a_page, csrf_protect], name="dispatch")
class ConnectedAppsView(_OfTheUser, ListView):  # type: ignore[type-arg] # not subscriptable at run time
    template_name = "mcp_serving/oauth/connected_apps.html"
    context_object_name = "apps"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        words = get_scopes_backend().get_all_scopes()
        for app in context["apps"]:
            app.name = readable_name(app.application)
            app.host = host_of(app.application)
            app.words = [words.get(scope, scope) for scope in app.scopes]
        return context


@method_decorator([only_as_a_page, csrf_protect], name="dispatch")
class DisconnectView(_OfTheUser, View):
    http_method_names = ["post"]  # noqa: RUF012 - as Django has it

    def post(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        user: Any = request.user
        app = get_object_or_404(ConnectedApp, pk=pk, user=user)
        ConnectedApp.objects.filter(pk=app.pk).disconnect()
        told = _("%(name)s is disconnected.") % {"name": readable_name(app.application)}
        messages.success(request, told, fail_silently=True)  # a project may have no messages
        return HttpResponseRedirect(reverse("mcp_oauth:connected-apps"))


def host_of(application: Any) -> str:
    """Where the client is: the host of its metadata document, or the hosts of its redirect URIs."""
    has_document = application.registration_source == application.RegistrationSource.CIMD
    urls = [application.client_id] if has_document else application.redirect_uris.split()
    return ", ".join(dict.fromkeys(map(readable_host, urls)))  # all hosts, because each may have got the code
