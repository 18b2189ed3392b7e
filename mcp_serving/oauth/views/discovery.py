"""RFC 8414 and OpenID Connect discovery: one document, at each path where clients look for it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from django.http import Http404, HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from oauth2_provider.settings import oauth2_settings
from oauth2_provider.views import ConnectDiscoveryInfoView, JwksInfoView, OAuthServerMetadataView

from mcp_serving.oauth.views.browsers import open_to_scripts


@method_decorator(open_to_scripts, name="dispatch")
class DiscoveryView(OAuthServerMetadataView):  # type: ignore[misc] # django-oauth-toolkit has no types
    """The metadata of the authorization server.

    A client that knows the issuer's path appends it to the well-known path. The issuer is the same at each path:
    django-oauth-toolkit would repeat whatever path a request names.
    """

    def get(self, request: HttpRequest, issuer_path: str = "") -> HttpResponseBase:
        issuer = oauth2_settings.oauth2_authorization_server_issuer(request)
        if issuer_path.strip("/") not in ("", urlsplit(issuer).path.strip("/")):
            raise Http404
        return JsonResponse({**self.document(request), "issuer": issuer})

    def document(self, request: HttpRequest) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(super().get(request).content)
        return found


class OpenIDDiscoveryView(DiscoveryView):
    """The same for clients that look for an OpenID provider: below a URL prefix, it is the path that they find."""

    def document(self, request: HttpRequest) -> dict[str, Any]:
        found = super().document(request)
        # An OpenID provider has to name these, and some clients refuse a document that does not. Without OpenID
        # Connect, no scope leads to an ID token.
        more: dict[str, Any] = {
            "jwks_uri": self._get_endpoint_url(request, "jwks-info"),
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        if oauth2_settings.OIDC_ENABLED:
            more = json.loads(ConnectDiscoveryInfoView().get(request).content)
        return found | more


@method_decorator(open_to_scripts, name="dispatch")
class KeysView(JwksInfoView):  # type: ignore[misc] # django-oauth-toolkit has no types
    """The public keys of the OpenID provider; none where OpenID Connect is off."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not oauth2_settings.OIDC_ENABLED:
            return JsonResponse({"keys": []})
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response
