# Django's own ModelAdmin cannot be subscripted at run time, as the type stubs would have it:
# mypy: disable-error-code="type-arg"
from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html

from mcp_serving.calls import charts
from mcp_serving.calls.models import Call
from mcp_serving.calls.statistics import Statistics, statistics

PERIODS = (7, 30, 90)
"""Days that the page with statistics offers."""


class _Frequent(admin.SimpleListFilter):
    """A filter by the most frequent values of the last 30 days: a table of calls may have very many others."""

    parameter_name: str
    most = 50

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        field = self.parameter_name
        recent = Call.objects.filter(started__gte=timezone.now() - timedelta(days=30)).exclude(**{field: ""})
        rows = recent.order_by().values(field).annotate(n=Count("pk")).order_by("-n", field)[: self.most]
        return [(row[field], row[field]) for row in rows]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Call]) -> QuerySet[Call]:
        return queryset if self.value() is None else queryset.filter(**{self.parameter_name: self.value()})


class NameFilter(_Frequent):
    title = "tool, resource or prompt"
    parameter_name = "name"


class UserFilter(_Frequent):
    title = "user"
    parameter_name = "user_name"


class ClientFilter(_Frequent):
    title = "client"
    parameter_name = "client"


@admin.register(Call)
class CallAdmin(admin.ModelAdmin):
    """Read-only: nobody can change what has happened."""

    list_display = ("started", "name", "outcome", "reason", "milliseconds", "user_link", "token_link", "client")
    list_filter = ("outcome", "started", "method", NameFilter, UserFilter, ClientFilter)
    search_fields = ("name", "user_name", "token", "client", "session", "request_id", "reason", "arguments")
    date_hierarchy = "started"
    show_full_result_count = False
    change_list_template = "mcp_calls/change_list.html"
    exclude = ("user", "user_name", "token", "arguments", "duration")

    def get_readonly_fields(self, request: HttpRequest, obj: Call | None = None) -> tuple[str, ...]:
        shown = [field.name for field in self.opts.fields if field.name not in (*self.exclude, "id")]
        return (*shown, "milliseconds", "user_link", "token_link", "given_arguments")

    def get_fields(self, request: HttpRequest, obj: Call | None = None) -> tuple[str, ...]:
        return self.get_readonly_fields(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Call | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Call | None = None) -> bool:
        return False

    @admin.display(description="duration in ms", ordering="duration")
    def milliseconds(self, call: Call) -> str:
        return f"{call.duration * 1000:.1f}"

    @admin.display(description="user", ordering="user_name")
    def user_link(self, call: Call) -> str:
        return self._link(get_user_model(), "change", call.user_name, key=call.user_id)  # type: ignore[attr-defined] # not in django-stubs

    @admin.display(description="token", ordering="token")
    def token_link(self, call: Call) -> str:
        label, model = ("mcp_tokens", "Token") if call.token.startswith("mcp_") else ("mcp_oauth", "ConnectedApp")
        if not apps.is_installed(f"mcp_serving.{label.removeprefix('mcp_')}"):
            return call.token
        return self._link(apps.get_model(label, model), "changelist", call.token, query={"q": call.token})

    def _link(self, model: Any, page: str, text: str, *, key: Any = None, query: dict[str, str] | None = None) -> str:
        """A link to a page of the admin; only the text if this admin site does not have the page."""
        if not text or (key is None and query is None):
            return text
        name = f"{self.admin_site.name}:{model._meta.app_label}_{model._meta.model_name}_{page}"
        try:
            url = reverse(name, args=() if key is None else (key,))
        except NoReverseMatch:
            return text
        return format_html('<a href="{}{}">{}</a>', url, f"?{urlencode(query)}" if query else "", text)

    @admin.display(description="arguments")
    def given_arguments(self, call: Call) -> str:
        try:
            text = json.dumps(json.loads(call.arguments), indent=2, ensure_ascii=False)
        except ValueError:  # they were cut, or none were recorded
            text = call.arguments
        return format_html("<pre>{}</pre>", text) if text else "-"

    # The statistics

    def get_urls(self) -> list[URLPattern]:
        page = path("statistics/", self.admin_site.admin_view(self.statistics_view), name="mcp_calls_statistics")
        return [page, *super().get_urls()]

    def statistics_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        given = request.GET.get("days", "")
        days = int(given) if given in map(str, PERIODS) else PERIODS[0]
        context = {
            **self.admin_site.each_context(request),
            "title": f"Calls of the last {days} days",
            "opts": self.opts,
            "days": days,
            "periods": PERIODS,
            "rows": [_row(each) for each in statistics(days)],
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "mcp_calls/statistics.html", context)


def _row(tool: Statistics) -> dict[str, Any]:
    days = tool.days
    p50, p95 = [day.p50 for day in days], [day.p95 for day in days]
    period = f"{days[0].date:%Y-%m-%d} to {days[-1].date:%Y-%m-%d}"
    return {
        "tool": tool,
        "error_percent": f"{tool.error_rate * 100:.1f} %",
        "p50": _in_ms(p50),
        "p95": _in_ms(p95),
        "calls_chart": charts.bars([day.calls for day in days], f"Calls of {tool.name} per day, {period}"),
        "errors_chart": charts.bars(
            [day.error_rate for day in days], f"Error rate of {tool.name} per day, {period}", top=1.0
        ),
        "duration_chart": charts.lines(
            [p50, p95], f"Duration of {tool.name} per day, {period}: p50, and p95 as a dashed line"
        ),
    }


def _in_ms(values: list[float | None]) -> str:
    """The value of the latest day with calls."""
    known = [value for value in values if value is not None]
    return f"{known[-1] * 1000:.1f} ms" if known else "-"
