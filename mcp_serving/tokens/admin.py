# Django's own ModelAdmin cannot be subscripted at run time, as the type stubs would have it:
# mypy: disable-error-code="type-arg"
from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.exceptions import NotRegistered
from django.contrib.auth import get_permission_codename, get_user_model
from django.db.models import ForeignKey, QuerySet
from django.forms import ModelChoiceField
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from mcp_serving.tokens.models import DEFAULT_LIFETIME, Token, key_id_of

FORM_FIELDS = ("user", "name", "scope", "expires")
"""What the form for a new token asks for."""


@admin.register(Token)
class TokenAdmin(admin.ModelAdmin):
    list_display = ("prefix", "user", "name", "scope", "state_label", "expires", "last_used")
    list_filter = (("revoked", admin.EmptyFieldListFilter), "expires", "last_used")
    list_select_related = ("user",)
    actions = ("revoke",)

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return ("name", "key_id", f"user__{get_user_model().USERNAME_FIELD}")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Token], search_term: str
    ) -> tuple[QuerySet[Token], bool]:
        return super().get_search_results(request, queryset, key_id_of(search_term) or search_term)

    @admin.display(description="state")
    def state_label(self, token: Token) -> str:
        return str(token.state.label)

    # The form. After a token is issued, only its name can be changed, because its client relies on the rest.

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        return (
            FORM_FIELDS if obj is None else (*FORM_FIELDS, "prefix", "state_label", "created", "revoked", "last_used")
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Token | None = None) -> tuple[str, ...]:
        return () if obj is None else tuple(field for field in self.get_fields(request, obj) if field != "name")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        expires = (timezone.now() + DEFAULT_LIFETIME).replace(microsecond=0)
        return {"user": request.user.pk, "expires": expires, **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> ModelChoiceField | None:
        if db_field.name == "user" and not _may_act_as_others(request):
            kwargs["queryset"] = get_user_model()._default_manager.filter(pk=request.user.pk)  # type: ignore[misc] # the user is logged in, so it has a pk
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_autocomplete_fields(self, request: HttpRequest) -> tuple[str, ...]:
        try:
            searchable = self.admin_site.get_model_admin(get_user_model()).get_search_fields(request)
        except NotRegistered:
            searchable = ()
        return ("user",) if searchable and _may_act_as_others(request) else ()

    # The only response that contains the token

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # The other buttons of the form lead to pages that do not show the token.
        only_save = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **only_save})

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        if not change:
            request.mcp_token_text = obj.set_new_secret()  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def response_add(self, request: HttpRequest, obj: Token, post_url_continue: str | None = None) -> HttpResponse:
        # The response itself shows the token. A message would store it in a cookie or the session, and a redirect
        # would put it into a URL. The admin's responses have headers that forbid caching.
        context = {
            **self.admin_site.each_context(request),
            "title": "The new token",
            "opts": self.opts,
            "token": obj,
            "text": request.mcp_token_text,  # type: ignore[attr-defined]
            "has_view_permission": self.has_view_permission(request),
        }
        return TemplateResponse(request, "mcp_tokens/issued.html", context)

    @admin.action(description="Revoke the selected tokens", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        tokens = list(queryset.filter(revoked=None))
        revoked = Token.objects.filter(pk__in=[token.pk for token in tokens]).revoke()
        for token in tokens:
            self.log_change(request, token, "Revoked.")
        self.message_user(request, f"Revoked tokens: {revoked}.", messages.SUCCESS)


def _may_act_as_others(request: HttpRequest) -> bool:
    """Whether the user may issue tokens for other users, and so act as them.

    It needs the permission to change users, with which they could set the other user's password, too.
    """
    options = get_user_model()._meta
    return request.user.has_perm(f"{options.app_label}.{get_permission_codename('change', options)}")
