"""The state of a question in several round trips, sealed so that any worker of this project can open it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.utils.crypto import salted_hmac
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateCodec,
    RequestStateSecurity,
)

from mcp_serving import current_request
from mcp_serving.threads import DjangoThreads
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


@dataclass
class Round:
    """One round trip of a call that may ask something. A call is the same one in all of its rounds."""

    call: str = field(default_factory=lambda: os.urandom(16).hex())
    asked_at: float | None = None
    """When the call first asked the user."""
    asked_about: dict[str, str] = field(default_factory=dict)
    """The arguments, as a digest, that each tool asked about: not those of the request where a tool calls another."""
    lifetime: float = LIFETIME
    brings_answers: bool = False

    @property
    def expired(self) -> bool:
        return self.asked_at is not None and not time.time() < self.asked_at + self.lifetime


_used: dict[str, float] = {}
"""Calls that were answered, and until when that matters. Beside the cache, which may forget any entry."""

_using = threading.Lock()
"""For ``_used``: several event loops may share it, each in a thread of its own."""


class OneCallCodec:
    """A codec that writes into each token which call it belongs to, and refuses calls that began too long ago.

    A token alone says nothing of that: each round trip has its own, with an expiry of its own, so that one
    answer could be made to yield any number of them.
    """

    def __init__(self, codec: RequestStateCodec, lifetime: float) -> None:
        self._codec = codec
        self._lifetime = lifetime

    def seal(self, payload: bytes) -> str:
        now = current_round()
        head = [now.call, now.asked_at or time.time(), now.asked_about]
        return self._codec.seal(json.dumps(head).encode() + b"\n" + payload)

    def unseal(self, token: str) -> bytes:
        head, _, payload = self._codec.unseal(token).partition(b"\n")
        try:
            call, asked_at, asked_about = json.loads(head)
        except ValueError as error:
            raise InvalidRequestState("malformed") from error
        now = Round(call, asked_at, asked_about, self._lifetime, brings_answers=True)
        if now.expired:
            raise InvalidRequestState("expired")
        current_request.update(question_round=now)
        return payload


def current_round() -> Round:
    """The round trip that the current request is."""
    now = current_request.get().question_round
    return now if isinstance(now, Round) else Round()


def _digest() -> str:
    """What the tool that runs is called with. Made where a tool asks: most do not."""
    text = json.dumps(current_request.get().tool_arguments, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def ask_about(tool: str) -> None:
    """The tool asks the user about the arguments that it is called with, or finds out what was answered.

    Raises:
        ToolError: it is another tool's call now, with other arguments than the user was asked about.
    """
    now, called_with = current_round(), _digest()
    if not now.brings_answers or tool not in now.asked_about:
        now.asked_at = now.asked_at if now.brings_answers else time.time()
        now.asked_about[tool] = called_with
    elif now.asked_about[tool] != called_with:
        raise ToolError(
            f"The user was asked about other arguments of {tool} than it is called with now: nothing was done."
        )


async def use_up(tool: str, threads: DjangoThreads) -> None:
    """Take the answer that this request brings: once, and not too late.

    A client that repeats its request must not have the tool run again. What was used is remembered here, and
    in Django's default cache, so that workers that share a cache share this too.

    Raises:
        ToolError: it was answered before, or too late.
    """
    now = current_round()
    if now.expired:  # a client up to 2025-11-25 answers while the call waits, and may take as long as it likes
        raise ToolError(
            f"The user took more than {now.lifetime / 60:g} minutes to answer: {tool} did nothing. "
            "To ask again, call it anew."
        )
    # Asked and answered within one request, as those clients do, there is nothing that could be repeated.
    if now.brings_answers and not await _is_first(now, threads):
        raise ToolError(
            f"This question about {tool} was answered before, and an answer counts once: nothing was done now. "
            "To ask the user again, call it anew."
        )


async def _is_first(answered: Round, threads: DjangoThreads) -> bool:
    moment = time.time()
    with _using:
        for call in [call for call, until in _used.items() if until < moment]:
            del _used[call]
        if answered.call in _used:
            return False
        _used[answered.call] = moment + answered.lifetime
    added: bool = await threads.look_up(cache.add, f"{_SALT}:{answered.call}", True, answered.lifetime)
    return added
