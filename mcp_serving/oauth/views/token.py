"""The token endpoint."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from oauth2_provider.views import TokenView as BaseTokenView

from mcp_serving.oauth.provider.validator import NULL
from mcp_serving.oauth.views.browsers import open_to_scripts


@method_decorator(open_to_scripts, name="dispatch")
class TokenView(BaseTokenView):  # type: ignore[misc] # django-oauth-toolkit has no types
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if any(NULL in value for value in request.POST.values()):
            told = {"error": "invalid_request", "error_description": "A parameter contains a null character."}
            return JsonResponse(told, status=400)
        response: HttpResponseBase = super().post(request, *args, **kwargs)
        response["Content-Type"] = "application/json"  # which django-oauth-toolkit leaves out of some errors
        response["Cache-Control"] = "no-store"
        return response
