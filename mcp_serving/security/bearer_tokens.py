"""Bearer tokens: which verifier accepts the token of a request, and which Django user it stands for."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from pydantic import AnyHttpUrl, ValidationError
from starlette.authentication import AuthCredentials

from mcp_serving.logs import escaped_lines
from mcp_serving.threads import DjangoThreads, async_orm_thread

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken, TokenVerifier
    from starlette.types import Scope

logger = logging.getLogger(__name__)

LOOKUP_THREADS = 16
"""How many sync ``user_for_token`` run at once, and so how many database connections they use."""

UserForToken = Callable[["AccessToken"], Any]
Resource: TypeAlias = "Callable[[], str] | None"


class VerifierFailed(Exception):
    """A verifier raised an exception, and no other verifier accepted the token."""


@dataclass(frozen=True)
class Caller:
    """The token of a request that was accepted, and its Django user, if the verifier knows users."""

    token: AccessToken
    user: Any = None

    def scope(self, scope: Scope) -> Scope:
        """The ASGI scope with the caller in it, as Starlette's ``AuthenticationMiddleware`` fills it."""
        user = AuthenticatedUser(self.token) if self.user is None else self.user
        return {**scope, "user": user, "auth": AuthCredentials(self.token.scopes)}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within the block, the SDK's ``get_access_token()`` returns the token."""
        reset = auth_context_var.set(AuthenticatedUser(self.token))
        try:
            yield
        finally:
            auth_context_var.reset(reset)


def bearer_token(scope: Scope) -> str | None:
    """The bearer token of a request; None if it has none, and an empty text if the header is malformed or repeated."""
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"authorization"]
    tokens = [text.strip() for kind, _, text in (each.partition(" ") for each in headers) if kind.lower() == "bearer"]
    if not tokens:
        return None
    return tokens[0] if len(headers) == 1 else ""


def remaining_lifetime() -> float | None:
    """Seconds until the token of the current request expires; None if it does not, or if there is no token."""
    token = get_access_token()
    return None if token is None or token.expires_at is None else token.expires_at - time.time()


class BearerTokens:
    """Asks several verifiers, one after the other.

    Args:
        verifiers: the first that accepts a token decides whom it stands for.
        user_for_token: finds the Django user of a token; by default the verifier's own ``user_for_token``, if any.
        needs_resource: whether a token is refused that names no resource (RFC 8707).
    """

    def __init__(
        self, verifiers: Sequence[TokenVerifier], user_for_token: UserForToken | None, *, needs_resource: bool
    ) -> None:
        self._verifiers = verifiers
        self._user_for_token = user_for_token
        self._needs_resource = needs_resource
        self._threads = DjangoThreads(LOOKUP_THREADS)

    async def caller(self, text: str, resource: Resource) -> Caller | None:
        """The caller that a token stands for; None if it is refused.

        Args:
            text: the token as the client sent it.
            resource: returns the URL of the resource that the client wants to use; a token that names another one is
                refused. None where the verifier checks that itself.

        Raises:
            VerifierFailed: the token could be neither accepted nor refused. The exception is logged.
        """
        failed = False
        for verifier in self._verifiers:
            try:
                with async_orm_thread():  # for the async ORM, in the verifier too
                    if (caller := await self._verified(verifier, text, resource)) is not None:
                        return caller
            except Exception:
                _log_exception_without(text)
                failed = True
        if failed:
            raise VerifierFailed
        return None

    async def _verified(self, verifier: TokenVerifier, text: str, resource: Resource) -> Caller | None:
        token = await verifier.verify_token(text)
        if token is None:
            return None
        user_for_token = self._user_for_token or getattr(verifier, "user_for_token", None)
        user = None
        reason = self._reason_to_refuse(token, resource)
        if reason is None and user_for_token is not None:
            user = await self._threads.call(user_for_token, token)
            if user is None or not user.is_active:
                reason = "it has no Django user" if user is None else "its user is inactive"
        if reason is not None:
            logger.info("Refused a bearer token: %s.", reason)
            return None
        return Caller(token, user)

    def _reason_to_refuse(self, token: AccessToken, resource: Resource) -> str | None:
        if token.expires_at is not None and token.expires_at < time.time():
            return "it has expired"
        if resource is None or (token.resource is None and not self._needs_resource):
            return None
        if token.resource is None or not is_same_url(token.resource, resource()):
            return f"it was issued for {token.resource}, and not for {resource()}"
        return None


def is_same_url(one: str, other: str) -> bool:
    """Compare as URLs: case, the default port and a slash at the end do not matter."""
    try:
        return str(AnyHttpUrl(one)).removesuffix("/") == str(AnyHttpUrl(other)).removesuffix("/")
    except ValidationError:
        return False


def _log_exception_without(token: str) -> None:
    """Log the exception that is being handled; its text often quotes the token that could not be read."""
    text = traceback.format_exc()
    if len(token) > 3:  # a shorter token is no secret, and its text would be found everywhere
        for quoted in {token, repr(token)[1:-1]}:
            text = text.replace(quoted, "[the token]")
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 0, "A bearer token could not be verified; its request gets 503.", (), None
    )
    record.exc_text = escaped_lines(text)
    logger.handle(record)
