"""The state of a question that takes several round trips, encrypted so that every worker can decrypt it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, cache, caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache
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
from mcp_serving.call_outcomes import Refused
from mcp_serving.threads import DjangoThreads
from mcp_serving.users import logged_in_user

logger = logging.getLogger(__name__)

LIFETIME = 600.0
"""Seconds that the user has to answer, from the first question of a call to the last answer."""

_SALT = "mcp_serving.request_state"


def security(given: RequestStateSecurity | None, audience: str) -> RequestStateSecurity:
    """The SDK's policy for request state: with keys of this project, unless the server brings its own policy.

    In both cases an answer counts once, and only from the Django user who was asked.
    """
    if given is None:
        given = RequestStateSecurity(codec=SecretKeyCodec(), ttl=LIFETIME, audience=audience)
    given_principal = given.bind_principal

    def bind_principal(ctx: ServerRequestContext[Any, Any]) -> str | None:
        user = logged_in_user()
        parts = [
            given_principal(ctx) if given_principal is not None else None,
            None if user is None else str(user.pk),
        ]
        return repr(parts) if any(part is not None for part in parts) else None

    return RequestStateSecurity(
        codec=OneCallCodec(given.codec, given.ttl),
        ttl=given.ttl,
        bind_principal=bind_principal,
        audience=given.audience,
    )


class SecretKeyCodec:
    """Encrypts with a key derived from ``SECRET_KEY``; decrypts also with keys of ``SECRET_KEY_FALLBACKS``."""

    @cached_property
    def _codec(self) -> AESGCMRequestStateCodec:
        # Made at the first use: a server may be made before the settings are configured.
        secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        keys = [salted_hmac(_SALT, "", secret=secret, algorithm="sha256").digest() for secret in secrets]
        return AESGCMRequestStateCodec(list(dict.fromkeys(keys)))

    def seal(self, payload: bytes) -> str:
        return self._codec.seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec.unseal(token)


@dataclass
class Round:
    """A round trip of a tool call that may ask questions. All round trips of a call have the same ``call``."""

    _call: str = ""
    asked_at: float | None = None
    """When the call first asked the user, in seconds since the epoch."""
    asked_about: dict[str, str] = field(default_factory=dict)
    """The digest of the arguments that each tool asked about. If one tool calls another, these are not the arguments
    of the request."""
    previews: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each tool with a preview: the digest of the last one that the user saw, and how often the user was asked."""
    results: dict[str, Any] = field(default_factory=dict)
    """The results of tools with a preview that have run for good; they do not travel."""
    check_access: Callable[[str], Awaitable[None]] | None = None
    """Refuses a tool if its user may not use it any more; for a client that answers within the request that asked."""
    lifetime: float = LIFETIME
    brings_answers: bool = False
    is_new: bool = True
    """False if the call had a round trip before this one."""
    is_sealed: bool = False
    """Whether its state goes to the client, which may then answer."""

    @property
    def call(self) -> str:
        """The random id of the call; made when it is first used, because most calls ask nothing."""
        if not self._call:
            self._call = os.urandom(16).hex()
        return self._call

    @property
    def has_new_question(self) -> bool:
        """Whether the response asks the first question of a call."""
        return self.is_sealed and self.is_new

    def renew(self) -> None:
        """Let the next question be one of its own, whose answer is used independently."""
        self._call, self.is_new = "", True

    @property
    def expired(self) -> bool:
        return self.asked_at is not None and not time.time() < self.asked_at + self.lifetime


_MOST_OPEN = 10_000
"""Open questions in the memory of a process. The oldest are forgotten: an answer to them is refused."""

_open: dict[str, float] = {}
"""Calls whose question is open, and until when, if Django's default cache is not shared with other processes."""

_opening = threading.Lock()
"""For ``_open``: event loops in several threads may share it."""


class OneCallCodec:
    """A codec that writes the call into each token, and refuses a call that began more than ``lifetime`` seconds ago.

    A token of the SDK does not name its call, and each round trip has a token with an expiry of its own. So the
    same answer could be used any number of times.
    """

    def __init__(self, codec: RequestStateCodec, lifetime: float) -> None:
        self._codec = codec
        self._lifetime = lifetime

    def seal(self, payload: bytes) -> str:
        now = current_round()
        now.is_sealed = True
        head = [now.call, now.asked_at or time.time(), now.asked_about, now.previews]
        return self._codec.seal(json.dumps(head).encode() + b"\n" + payload)

    def unseal(self, token: str) -> bytes:
        now, payload = self._read(token)
        current_request.update(question_round=now)
        return payload

    def _read(self, token: str) -> tuple[Round, bytes]:
        head, _, payload = self._codec.unseal(token).partition(b"\n")
        try:
            call, asked_at, asked_about, previews = json.loads(head)
        except ValueError as error:
            raise InvalidRequestState("malformed") from error
        now = Round(call, asked_at, asked_about, previews, lifetime=self._lifetime, brings_answers=True, is_new=False)
        if now.expired:
            raise InvalidRequestState("expired")
        return now, payload

    def call_of(self, params: Any) -> str | None:
        """The call that a request continues with the answer to a question; None if the request begins a call.

        Args:
            params: the parameters of the request. They are not validated.
        """
        token = params.get("requestState") if isinstance(params, dict) else None
        try:
            return self._read(token)[0].call if isinstance(token, str) else None
        except InvalidRequestState:
            return None


def current_round() -> Round:
    """The round trip that the current request is."""
    now = current_request.get().question_round
    return now if isinstance(now, Round) else Round()


def counted_call() -> str | None:
    """The call that the current request continues, which was counted before; None if the request begins a call."""
    now = current_round()
    return None if now.is_new else now.call


def _digest() -> str:
    """A digest of the arguments of the running tool. It is computed only when a tool asks; most tools do not."""
    text = json.dumps(current_request.get().tool_arguments or {}, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def ask_about(tool: str) -> None:
    """Record that the running tool asks the user about its arguments, or compare them with the recorded ones.

    Raises:
        ToolError: the user was asked about other arguments. The tool was called by another tool, in a new way.
    """
    now, digest = current_round(), _digest()
    if not now.brings_answers or tool not in now.asked_about:
        now.asked_at = now.asked_at if now.brings_answers else time.time()
        now.asked_about[tool] = digest
    elif now.asked_about[tool] != digest:
        raise ToolError(
            f"The user was asked about other arguments of {tool} than it is called with now: nothing was done."
        ) from Refused("answer")


async def use_answer(tool: str, threads: DjangoThreads) -> None:
    """Use the answer that this request brings: once, and in time.

    The question of a call is stored when it is asked, and removed here. So an answer is refused if its question was
    answered before, and also if the store has lost it: after a restart of the process, or if the cache has evicted it.

    Raises:
        ToolError: the answer was used before, is not known, or came too late. Or the user lost the permission.
    """
    now = current_round()
    if now.expired:  # a client up to 2025-11-25 answers while the call waits, at any time
        raise ToolError(
            f"The user took more than {now.lifetime / 60:g} minutes to answer: {tool} did nothing. "
            "To ask again, call it anew."
        ) from Refused("answer")
    # Clients up to 2025-11-25 are asked and answer within one request. It cannot be repeated, but it may be old.
    if not now.brings_answers and now.check_access is not None:
        await now.check_access(tool)
    if now.brings_answers and not await threads.look_up(_close, now.call):
        logger.info(
            "Refused an answer about %s: it was used before, or its question was asked by another process, or before a "
            "restart. Workers need a cache that they share, in CACHES['default'].",
            tool,
        )
        raise ToolError(
            f"This question about {tool} was answered before, or the server no longer knows it, and an answer counts "
            "once: nothing was done now. To ask the user again, call it anew."
        ) from Refused("answer")


async def store_question(threads: DjangoThreads) -> None:
    """Store the question of a new call, if it has one, before the client can see it."""
    now = current_round()
    if now.has_new_question:
        await threads.look_up(_store, now.call, now.lifetime)


def has_shared_cache() -> bool:
    """Whether workers may share Django's default cache."""
    return not isinstance(caches[DEFAULT_CACHE_ALIAS], LocMemCache | DummyCache)


def _store(call: str, lifetime: float) -> None:
    if has_shared_cache():
        cache.set(f"{_SALT}:{call}", True, lifetime)
        return
    now = time.time()
    with _opening:
        for each in [each for each, until in _open.items() if until < now]:
            del _open[each]
        if len(_open) >= _MOST_OPEN:
            del _open[next(iter(_open))]
        _open[call] = now + lifetime


def _close(call: str) -> bool:
    """Remove an open question; False if there is none. Of several callers, one removes it."""
    if has_shared_cache():
        return bool(cache.delete(f"{_SALT}:{call}"))
    with _opening:
        return _open.pop(call, None) is not None


def with_contents(ctx: ServerRequestContext[Any, Any]) -> ServerRequestContext[Any, Any]:
    """The request, in which an accepted question has a content: several clients send none, which the SDK rejects."""
    answers = (ctx.params or {}).get("inputResponses")
    if not isinstance(answers, dict):
        return ctx
    filled = {key: {**each, "content": {}} if _lacks_content(each) else each for key, each in answers.items()}
    return replace(ctx, params={**(ctx.params or {}), "inputResponses": filled})


def _lacks_content(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("action") == "accept" and answer.get("content") is None
