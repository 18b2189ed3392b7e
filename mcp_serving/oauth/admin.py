# Django's own ModelAdmin cannot be subscripted at run time, as the type stubs would have it:
# mypy: disable-error-code="type-arg"
from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from mcp_serving.oauth.models import ConnectedApp
from mcp_serving.oauth.views.connected_apps import host_of


@admin.register(ConnectedApp)
class ConnectedAppAdmin(admin.ModelAdmin):
    """What is connected, by whom; deleting a row disconnects the app."""

    list_display = ("application", "host", "user", "scope", "connected", "last_used")
    list_filter = ("application", "connected", "last_used")
    list_select_related = ("application", "user")
    readonly_fields = ("application", "host", "user", "scope", "connected", "last_used")
    actions = ("disconnect",)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return ("application__name", "application__client_id", f"user__{get_user_model().USERNAME_FIELD}")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # only the user can agree

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        given = () if action_location is None else (action_location,)  # from Django 6.1 on
        actions: dict[str, Any] = super().get_actions(request, *given)
        actions.pop("delete_selected", None)  # the same as below, in other words
        return actions

    @admin.display(description=_("host"))
    def host(self, app: ConnectedApp) -> str:
        return host_of(app.application)

    @admin.action(description=_("Disconnect the selected apps"), permissions=["delete"])
    def disconnect(self, request: HttpRequest, apps: QuerySet[ConnectedApp]) -> None:
        number = ConnectedApp.objects.filter(pk__in=apps.values("pk")).disconnect()
        told = ngettext("%d app is disconnected.", "%d apps are disconnected.", number) % number
        self.message_user(request, told, messages.SUCCESS)

    def delete_model(self, request: HttpRequest, app: ConnectedApp) -> None:
        ConnectedApp.objects.filter(pk=app.pk).disconnect()

    def delete_queryset(self, request: HttpRequest, apps: QuerySet[ConnectedApp]) -> None:
        ConnectedApp.objects.filter(pk__in=apps.values("pk")).disconnect()
