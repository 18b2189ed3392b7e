"""Dynamic client registration (RFC 7591): as often as the settings allow."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from oauth2_provider.views import DynamicClientRegistrationManagementView, DynamicClientRegistrationView

from mcp_serving.oauth.conf import HOUR
from mcp_serving.oauth.provider.client_metadata import supported
from mcp_serving.oauth.provider.registrations import has_room, is_too_often
from mcp_serving.oauth.views.browsers import open_to_scripts

MAX_BODY = 16 * 1024
"""Bytes of a registration: as many as django-oauth-toolkit reads of a client's metadata document."""


@method_decorator(open_to_scripts, name="dispatch")
class RegistrationView(DynamicClientRegistrationView):  # type: ignore[misc] # django-oauth-toolkit has no types
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if is_too_often(request) or not has_room():
            told = {"error": "temporarily_unavailable", "error_description": "Too many clients have registered."}
            return JsonResponse(told, status=429, headers={"Retry-After": str(HOUR)})
        return _with_supported_metadata(super().post, request, *args, **kwargs)


@method_decorator(open_to_scripts, name="dispatch")
class RegistrationManagementView(DynamicClientRegistrationManagementView):  # type: ignore[misc] # as above
    def put(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return _with_supported_metadata(super().put, request, *args, **kwargs)


def _with_supported_metadata(view: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
    """Call a view of django-oauth-toolkit with the part of the client's metadata that this server supports."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY or len(request.body) > MAX_BODY:
        return _refused(f"The metadata is larger than {MAX_BODY} bytes.")
    try:
        metadata = json.loads(request.body)
    except (ValueError, RecursionError):
        return _refused("The request body is not JSON.")
    if not isinstance(metadata, dict):
        return _refused("The request body is not a JSON object.")
    if metadata.get("client_name") is None:
        metadata["client_name"] = ""  # null counts as left out
    if not isinstance(metadata["client_name"], str):
        return _refused("client_name is not a string.")
    if not _is_storable(json.dumps(metadata, ensure_ascii=False)):
        return _refused("The metadata has characters that cannot be stored.")
    chosen = supported(metadata)
    if chosen.get("grant_types") == []:
        return _refused(f"grant_types is {metadata['grant_types']!r}; it has to name authorization_code.")
    response: HttpResponseBase = view(_WithBody(request, json.dumps(chosen).encode()), *args, **kwargs)
    return response


def _is_storable(text: str) -> bool:
    """Whether a JSON text has no null character, which PostgreSQL refuses, and no lone surrogate."""
    try:
        return b"\\u0000" not in text.encode()
    except UnicodeEncodeError:
        return False


def _refused(description: str) -> JsonResponse:
    return JsonResponse({"error": "invalid_client_metadata", "error_description": description}, status=400)


class _WithBody:
    """A request with another body."""

    def __init__(self, request: HttpRequest, body: bytes) -> None:
        self._request = request
        self.body = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)
