"""The token endpoint."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from oauth2_provider.views import TokenView as BaseTokenView

from mcp_serving.oauth.views.browsers import open_to_scripts


@method_decorator(open_to_scripts, name="dispatch")
class TokenView(BaseTokenView):  # type: ignore[misc] # django-oauth-toolkit has no types
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response: HttpResponseBase = super().post(request, *args, **kwargs)
        response["Content-Type"] = "application/json"  # which django-oauth-toolkit leaves out of some errors
        response["Cache-Control"] = "no-store"
        return response
