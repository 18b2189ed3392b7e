"""The state of a question in several round trips, sealed so that any worker of this project can open it."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.utils.crypto import salted_hmac
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateCodec,
    RequestStateSecurity,
)

from mcp_serving.tools.threads import DjangoThreads
from mcp_serving.users import logged_in_user

LIFETIME = 600.0
"""Seconds that the user has to answer, from the first question of a call to the last answer."""

_SALT = "mcp_serving.request_state"


def security(given: RequestStateSecurity | None, audience: str) -> RequestStateSecurity:
    """What the SDK is to seal with: the keys of this project, unless the server brings its own policy.

    In either case an answer counts once, and for the Django user who was asked alone.
    """
    if given is None:
        given = RequestStateSecurity(codec=SecretKeyCodec(), ttl=LIFETIME, audience=audience)
    theirs = given.bind_principal

    def bind_principal(ctx: ServerRequestContext[Any, Any]) -> str | None:
        user = logged_in_user()
        parts = [theirs(ctx) if theirs is not None else None, None if user is None else str(user.pk)]
        return repr(parts) if any(part is not None for part in parts) else None

    return RequestStateSecurity(
        codec=OneCallCodec(given.codec, given.ttl),
        ttl=given.ttl,
        bind_principal=bind_principal,
        audience=given.audience,
    )


class SecretKeyCodec:
    """Seals with a key derived from ``SECRET_KEY``; opens what an older key of ``SECRET_KEY_FALLBACKS`` sealed."""

    @cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        # When it is first used, not when the server is made: that may be before the settings are there.
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        keys = [salted_hmac(_SALT, "", secret=secret, algorithm="sha256").digest() for secret in secrets]
        return AESGCMRequestStateCodec(list(dict.fromkeys(keys)))

    def seal(self, payload: bytes) -> str:
        return self._codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec.unseal(token)


@dataclass(frozen=True)
class QuestionedCall:
    """A tool call that asked something: the same in all its round trips, whatever tokens they carry."""

    key: bytes
    asked_at: float
    lifetime: float


_call: ContextVar[QuestionedCall | None] = ContextVar("mcp_serving.questioned_call", default=None)

_used: dict[bytes, float] = {}
"""Calls that were answered, and until when that matters. Beside the cache, which may forget any entry."""


class OneCallCodec:
    """A codec that writes into each token which call it belongs to, and refuses calls that began too long ago.

    A token alone says nothing of that: each round trip has its own, with an expiry of its own, so that one
    answer could be made to yield any number of them.
    """

    _head = Struct("!16sd")

    def __init__(self, codec: RequestStateCodec, lifetime: float) -> None:
        self._codec = codec
        self._lifetime = lifetime

    def seal(self, payload: bytes) -> str:
        call = _call.get() or QuestionedCall(os.urandom(16), time.time(), self._lifetime)
        return self._codec.seal(self._head.pack(call.key, call.asked_at) + payload)

    def unseal(self, token: str) -> bytes:
        payload = self._codec.unseal(token)
        if len(payload) < self._head.size:
            raise InvalidRequestState("malformed")
        key, asked_at = self._head.unpack_from(payload)
        if not time.time() < asked_at + self._lifetime:
            raise InvalidRequestState("expired")
        _call.set(QuestionedCall(key, asked_at, self._lifetime))
        return payload[self._head.size :]


def begin_request() -> None:
    """A new request begins: it belongs to no call that has asked something yet."""
    _call.set(None)


async def use_up(threads: DjangoThreads) -> bool:
    """Whether the answer that this request brings is used for the first time.

    A client that repeats its request must not have the tool run again. What was used is remembered here, and
    in Django's default cache, so that workers that share a cache share this too.
    """
    call = _call.get()
    if call is None:  # asked and answered within one request, as clients up to 2025-11-25 do
        return True
    now = time.time()
    for key in [key for key, until in _used.items() if until < now]:
        _used.pop(key, None)
    if call.key in _used:
        return False
    _used[call.key] = call.asked_at + call.lifetime
    added: bool = await threads.run(cache.add, f"{_SALT}:{call.key.hex()}", True, call.lifetime)
    return added
