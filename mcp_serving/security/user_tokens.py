"""What the verifiers of this package have in common: tokens with a Django user, looked up in threads of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mcp.server.auth.provider import AccessToken, TokenVerifier
from pydantic import Field, PrivateAttr

from mcp_serving.threads import PooledSyncToAsync

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

MAX_THREADS = 4
"""How many tokens each verifier looks up at the same time. Each lookup is one short query on a database connection."""


class UserAccessToken(AccessToken):
    """The SDK's ``AccessToken`` with the Django user. Its ``repr`` has neither the user nor the text of the token."""

    token: str = Field(repr=False)
    _user: AbstractBaseUser = PrivateAttr()

    @classmethod
    def of(cls, user: AbstractBaseUser, **fields: Any) -> UserAccessToken:
        """A token of ``user``, with the user's primary key as its subject."""
        token = cls(subject=str(user.pk), **fields)
        token._user = user
        return token


class UserVerifier(TokenVerifier):
    """A verifier whose tokens stand for Django users."""

    def __init__(self) -> None:
        # Threads of its own: in asgiref's shared thread, one slow query would block every request.
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"mcp-serving-{type(self).__name__}")

    def look_up(self, text: str) -> UserAccessToken | None:
        """The token if it is valid now and its user is active, otherwise None."""
        raise NotImplementedError

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token if it is valid now and its user is active, otherwise None.

        Raises:
            django.db.Error: the query failed.
        """
        found: AccessToken | None = await PooledSyncToAsync(self.look_up, thread_sensitive=False, executor=self._pool)(
            token
        )
        return found

    async def user_for_token(self, token: AccessToken) -> AbstractBaseUser | None:
        """The Django user of a token from ``verify_token``; None for other tokens. Makes no query."""
        return token._user if isinstance(token, UserAccessToken) else None
