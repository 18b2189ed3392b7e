from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from oauth2_provider.oauth2_validators import Grant, OAuth2Validator

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Validator(OAuth2Validator):  # type: ignore[misc] # django-oauth-toolkit has no types
    """django-oauth-toolkit's rules, and those that it leaves to the project."""

    def validate_redirect_uri(self, client_id: str, redirect_uri: str, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Without TLS, a code is sent to nowhere but the user's own machine."""
        if not super().validate_redirect_uri(client_id, redirect_uri, request, *args, **kwargs):
            return False
        target = urlsplit(redirect_uri)
        return target.scheme != "http" or target.hostname in LOOPBACK

    def validate_grant_type(
        self, client_id: str, grant_type: str, client: Any, request: Any, *args: Any, **kwargs: Any
    ) -> bool:
        """A client that registered itself gets no token without a user who agrees."""
        sources = type(client).RegistrationSource
        if client.registration_source in (sources.DCR, sources.CIMD) and grant_type not in (
            "authorization_code",
            "refresh_token",
        ):
            return False
        return bool(super().validate_grant_type(client_id, grant_type, client, request, *args, **kwargs))

    def validate_code(self, client_id: str, code: str, client: Any, request: Any, *args: Any, **kwargs: Any) -> bool:
        if not super().validate_code(client_id, code, client, request, *args, **kwargs):
            return False
        grant = Grant.objects.get(code=code, application=client)
        return bool(request.user.is_active) and not _names_more_than(grant.resource, request)

    def validate_refresh_token(self, refresh_token: str, client: Any, request: Any, *args: Any, **kwargs: Any) -> bool:
        if not super().validate_refresh_token(refresh_token, client, request, *args, **kwargs):
            return False
        return bool(request.user.is_active) and not _names_more_than(request.refresh_token_instance.resource, request)


def _names_more_than(agreed: list[str], request: Any) -> bool:
    """Whether a token request names a resource although the user agreed to none.

    django-oauth-toolkit would take the consent to anything else as one to use this site's MCP server.
    """
    return not agreed and bool(getattr(request, "resource", None))
