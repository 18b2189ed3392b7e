"""Verifies bearer tokens for ``StreamableHTTPHandler``."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from mcp_serving.security.user_tokens import UserAccessToken, UserVerifier


class UserTokenVerifier(UserVerifier):
    """Verifies the tokens of ``mcp_serving.tokens``, as the SDK's ``TokenVerifier`` does.

    The ``client_id`` of a verified token is ``mcp_`` and the key id. Its ``subject`` is the primary key of the user.

    Raises:
        ImproperlyConfigured: ``"mcp_serving.tokens"`` is not in ``INSTALLED_APPS``.

    Example:
        >>> handler = StreamableHTTPHandler(server, auth=UserTokenVerifier())
    """

    def __init__(self) -> None:
        if apps.ready and not apps.is_installed("mcp_serving.tokens"):
            raise ImproperlyConfigured("UserTokenVerifier needs 'mcp_serving.tokens' in INSTALLED_APPS.")
        super().__init__()

    def look_up(self, text: str) -> UserAccessToken | None:
        from mcp_serving.tokens.models import Token  # models can be imported only after django.setup()

        row = Token.objects.verify(text)
        if row is None:
            return None
        return UserAccessToken.of(
            row.user,
            token=text,
            client_id=row.prefix,
            scopes=row.scopes,
            expires_at=int(row.expires.timestamp()) if row.expires is not None else None,
        )
