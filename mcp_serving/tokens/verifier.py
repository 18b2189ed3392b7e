"""Verifies bearer tokens for ``StreamableHTTPHandler``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from mcp.server.auth.provider import AccessToken, TokenVerifier
from pydantic import Field, PrivateAttr

from mcp_serving.threads import PooledSyncToAsync

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

MAX_THREADS = 4
"""How many tokens are looked up at the same time. Each lookup is one short query on a database connection."""


class UserAccessToken(AccessToken):
    """The SDK's ``AccessToken`` with the Django user. Its ``repr`` has neither the user nor the text of the token."""

    token: str = Field(repr=False)
    _user: AbstractBaseUser = PrivateAttr()


class UserTokenVerifier(TokenVerifier):
    """Verifies the tokens of ``mcp_serving.tokens``, as the SDK's ``TokenVerifier`` does.

    Raises:
        ImproperlyConfigured: ``"mcp_serving.tokens"`` is not in ``INSTALLED_APPS``.

    Example:
        >>> handler = StreamableHTTPHandler(server, auth=UserTokenVerifier())
    """

    def __init__(self) -> None:
        if apps.ready and not apps.is_installed("mcp_serving.tokens"):
            raise ImproperlyConfigured("UserTokenVerifier needs 'mcp_serving.tokens' in INSTALLED_APPS.")
        # Threads of its own: in asgiref's shared thread, one slow query would block every request.
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="mcp-serving-tokens")

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token if it is valid now and its user is active, otherwise None.

        Its ``client_id`` is ``mcp_`` and the key id. Its ``subject`` is the primary key of the user.

        Raises:
            django.db.Error: the query failed.
        """
        found: AccessToken | None = await PooledSyncToAsync(_look_up, thread_sensitive=False, executor=self._pool)(
            token
        )
        return found

    async def user_for_token(self, token: AccessToken) -> AbstractBaseUser | None:
        """The Django user of a token from ``verify_token``; None for other tokens. Makes no query."""
        return token._user if isinstance(token, UserAccessToken) else None


def _look_up(text: str) -> UserAccessToken | None:
    from mcp_serving.tokens.models import Token  # models can be imported only after django.setup()

    row = Token.objects.verify(text)
    if row is None:
        return None
    token = UserAccessToken(
        token=text,
        client_id=row.prefix,
        scopes=row.scopes,
        expires_at=int(row.expires.timestamp()) if row.expires is not None else None,
        subject=str(row.user.pk),
    )
    token._user = row.user
    return token
