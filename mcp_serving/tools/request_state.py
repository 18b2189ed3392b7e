"""The state of a question in several round trips, sealed so that any worker of this project can open it."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.utils.crypto import salted_hmac
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    RequestStateSecurity,
    authenticated_principal,
)

from mcp_serving.tools.threads import DjangoThreads
from mcp_serving.users import get_user

LIFETIME = 600.0
"""Seconds that the user has to answer."""

_SALT = "mcp_serving.request_state"

_opened: ContextVar[str | None] = ContextVar("mcp_serving.opened_request_state", default=None)


class SecretKeyCodec:
    """Seals with a key derived from ``SECRET_KEY``; opens what an older key of ``SECRET_KEY_FALLBACKS`` sealed."""

    @cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        keys = [salted_hmac(_SALT, "", secret=secret, algorithm="sha256").digest() for secret in secrets]
        return AESGCMRequestStateCodec(list(dict.fromkeys(keys)))

    def seal(self, payload: bytes) -> str:
        return self._codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        payload = self._codec.unseal(token)
        _opened.set(token)
        return payload


def security(audience: str) -> RequestStateSecurity:
    """What the SDK is given for servers that do not bring their own."""
    return RequestStateSecurity(codec=SecretKeyCodec(), ttl=LIFETIME, bind_principal=_principal, audience=audience)


def _principal(ctx: ServerRequestContext[Any, Any]) -> str | None:
    """Whose answer it has to be: the token's principal, the Django user."""
    user: Any = get_user()
    parts = [authenticated_principal(ctx), str(user.pk) if user.is_authenticated else None]
    return repr(parts) if any(part is not None for part in parts) else None


def begin_request() -> None:
    """A new request begins: it has opened no state yet."""
    _opened.set(None)


async def use_up(threads: DjangoThreads) -> bool:
    """Whether the answer that the running call brought is used for the first time.

    A client that repeats its request must not have the tool run again. Used ones are remembered in Django's
    default cache, so that workers that share a cache share this too.
    """
    token = _opened.get()
    if token is None:
        return True
    key = f"{_SALT}:{hashlib.sha256(token.encode()).hexdigest()}"
    return bool(await threads.run(cache.add, key, True, LIFETIME))
