from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from mcp.server.auth.provider import AccessToken, TokenVerifier
from pydantic import Field, PrivateAttr

from mcp_serving.threads import InPool

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

MOST_THREADS = 4
"""How many tokens are looked up at once, and so how many database connections that takes: each is one short query."""


class UserAccessToken(AccessToken):
    """What the SDK is told of a token, with its user along; neither the user nor the text is in its ``repr``."""

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
        # Not the one thread that all of a process share: there, one slow query would hold up every request.
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="mcp-serving-tokens")

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token if it is valid now, and its user active; else None.

        Its ``client_id`` is the token's own (``mcp_`` and the key id), its ``subject`` the user's primary key.

        Raises:
            django.db.Error: the database could not be asked.
        """
        found: AccessToken | None = await InPool(_look_up, thread_sensitive=False, executor=self._pool)(token)
        return found

    async def user_for_token(self, token: AccessToken) -> AbstractBaseUser | None:
        """The Django user of a token that ``verify_token`` has returned; None for any other. Makes no query."""
        return token._user if isinstance(token, UserAccessToken) else None


def _look_up(text: str) -> UserAccessToken | None:
    from mcp_serving.tokens.models import Token  # which cannot be imported before Django is set up

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
