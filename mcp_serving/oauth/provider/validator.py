from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from oauth2_provider.models import get_refresh_token_model
from oauth2_provider.oauth2_validators import Grant, OAuth2Validator
from oauth2_provider.settings import oauth2_settings
from oauthlib.oauth2.rfc6749.errors import InvalidGrantError

NULL = "\0"
"""PostgreSQL refuses a query with this character, and the request would get 500."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Validator(OAuth2Validator):  # type: ignore[misc] # django-oauth-toolkit has no types
    """django-oauth-toolkit's rules, and those that it leaves to the project."""

    def validate_redirect_uri(self, client_id: str, redirect_uri: str, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Without TLS, a code is sent to nowhere but the user's own machine.

        A user name in the URL would look like the host.
        """
        if not super().validate_redirect_uri(client_id, redirect_uri, request, *args, **kwargs):
            return False
        target = urlsplit(redirect_uri)
        return "@" not in target.netloc and (target.scheme != "http" or target.hostname in LOOPBACK)

    def validate_user(self, username: str, password: str, client: Any, request: Any, *args: Any, **kwargs: Any) -> bool:
        """Without the password grant, the token endpoint does not tell whether a password is right."""
        if oauth2_settings.COMPLIANT_BCP_RFC9700_PASSWORD_GRANT:
            return False
        return bool(super().validate_user(username, password, client, request, *args, **kwargs))

    def _load_application(self, client_id: str, request: Any) -> Any:
        return None if NULL in (client_id or "") else super()._load_application(client_id, request)

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
            _revoke_tokens_from(code, request)
            return False
        grant = Grant.objects.filter(code=code, application=client).first()  # another request may have used it
        return grant is not None and bool(request.user.is_active) and not _names_more_than(grant.resource, request)

    def invalidate_authorization_code(self, client_id: str, code: str, request: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().invalidate_authorization_code(client_id, code, request, *args, **kwargs)
        except InvalidGrantError:  # another request with this code was faster
            _revoke_tokens_from(code, request)
            raise

    def _save_bearer_token(self, token: dict[str, Any], request: Any, *args: Any, **kwargs: Any) -> None:
        super()._save_bearer_token(token, request, *args, **kwargs)
        if request.grant_type == "authorization_code":
            checksum = hashlib.sha256(token["refresh_token"].encode()).hexdigest()
            rows = get_refresh_token_model().objects.filter(token_checksum=checksum)
            rows.update(token_family=_family_of(request.code, request))

    def validate_refresh_token(self, refresh_token: str, client: Any, request: Any, *args: Any, **kwargs: Any) -> bool:
        if not super().validate_refresh_token(refresh_token, client, request, *args, **kwargs):
            return False
        return bool(request.user.is_active) and not _names_more_than(request.refresh_token_instance.resource, request)


def _names_more_than(agreed: list[str], request: Any) -> bool:
    """Whether a token request names a resource although the user agreed to none.

    django-oauth-toolkit would take the consent to anything else as one to use this site's MCP server.
    """
    return not agreed and bool(getattr(request, "resource", None))


def _family_of(code: str, request: Any) -> UUID:
    """The family of all tokens that come from an authorization code. The code itself need not be stored any more.

    The PKCE verifier is a part of the digest, so that a stolen code without its verifier ends nothing.
    """
    parts = "\n".join((str(request.client.pk), code, request.code_verifier or ""))
    return UUID(bytes=hashlib.sha256(parts.encode()).digest()[:16])


def _revoke_tokens_from(code: str, request: Any) -> None:
    """End the tokens that were issued for a code: the client or a thief has used it twice (RFC 6749, 4.1.2)."""
    get_refresh_token_model().revoke_family(_family_of(code, request))
