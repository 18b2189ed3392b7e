"""Who may call an MCP endpoint: stated where its handler is made, found out for each request."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.conf import settings
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcp_serving import current_request, sdk
from mcp_serving.logs import escaped_lines
from mcp_serving.threads import DjangoThreads, thread_of_its_own
from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken, TokenVerifier
    from starlette.types import Scope

logger = logging.getLogger(__name__)

LOOKUP_THREADS = 16
"""How many sync ``user_for_token`` may run at once, and so how many connections they have: a slow one holds up few."""

UserForToken = Callable[["AccessToken"], Any]

STATE_ONE = "public=True, login_required=True or auth=..."


class VerifierFailed(Exception):
    """A token could be neither accepted nor refused."""


VERIFIER_FAILED = Refusal(503, "Try again later.", headers={"retry-after": "5"})


async def answer_to_error(_: Request, error: Exception) -> Response:
    """What Starlette answers on the server's other routes, where one failed before there was an answer."""
    if isinstance(error, VerifierFailed):
        return VERIFIER_FAILED.response
    return PlainTextResponse("Internal Server Error", 500)


@dataclass(frozen=True)
class Access:
    """Who may call a handler.

    Args:
        server: the MCP server; one of the SDK's may bring ``auth`` of its own.
        public: everybody.
        login_required: who is logged in, by ``scope["user"]``.
        auth: who has a bearer token: the SDK's ``AuthSettings`` with a ``token_verifier``, or a verifier alone.
        token_verifier: the verifier for ``AuthSettings``.
        required_scopes: what each token needs, where ``auth`` is a verifier.
        user_for_token: the Django user of a token; by default what the verifier knows of that, if anything.

    Raises:
        ValueError, TypeError: more than one of them is stated, or one with what does not belong to it.
    """

    server: sdk.SDKServer
    public: bool = False
    login_required: bool = False
    auth: AuthSettings | TokenVerifier | None = None
    token_verifier: TokenVerifier | None = None
    required_scopes: Sequence[str] = ()
    user_for_token: UserForToken | None = None
    _told: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stated = [name for name in ("public", "login_required", "auth") if getattr(self, name)]
        if sdk.has_auth(self.server):
            stated.append("the server's own auth")
        if len(stated) > 1:
            raise ValueError(f"Who may call is stated by {' and '.join(stated)}: say one of {STATE_ONE}")
        if isinstance(self.required_scopes, str):
            raise TypeError(f"required_scopes is {self.required_scopes!r}; it has to be a list of scopes.")
        self._check_auth()
        if self.user_for_token is not None and not self._by_token:
            raise ValueError("user_for_token needs auth=..., on the handler or on the server: there is no token.")

    def _check_auth(self) -> None:
        if isinstance(self.auth, AuthSettings):
            if self.token_verifier is None:
                raise ValueError("auth=AuthSettings(...) needs a token_verifier beside it.")
            if self.required_scopes:
                raise ValueError("required_scopes belongs into AuthSettings(required_scopes=...).")
            return
        if self.token_verifier is not None:
            raise ValueError("token_verifier needs auth=AuthSettings(...) beside it; alone, it is auth=... itself.")
        if self.auth is None and self.required_scopes:
            raise ValueError("required_scopes needs auth=..., the verifier of the tokens that have them.")
        if self.auth is not None and not hasattr(self.auth, "verify_token"):
            raise TypeError(
                f"auth is {self.auth!r}; it has to be the SDK's AuthSettings, or a verifier with verify_token()."
            )

    @property
    def is_stated(self) -> bool:
        return self.public or self.login_required or self._by_token

    @property
    def _by_token(self) -> bool:
        return self.auth is not None or sdk.has_auth(self.server)

    def refusal_if_unstated(self) -> Refusal | None:
        """Why everybody is refused, where nobody has said who may call."""
        if self.is_stated or settings.DEBUG:
            return None
        self._tell_once(
            f"Refused every request: DEBUG is off, and the handler does not say who may call: give it {STATE_ONE}"
        )
        return Refusal(403, "This MCP endpoint is not open: its handler does not say who may call.")

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why the caller is refused before anything is parsed; None where they may pass, or have a token to show."""
        if refused := self.refusal_if_unstated():
            return refused
        if self.login_required and not _is_logged_in(scope):
            if "user" not in scope:
                self._tell_once(
                    "Refused every request: login_required=True needs to know who is logged in. Put the handler into "
                    "channels.auth.AuthMiddlewareStack, or another middleware that fills scope['user']."
                )
            logger.info("Refused a request for %.200r: nobody is logged in.", scope["path"])
            return Refusal(401, "Log in first.", headers={"www-authenticate": 'Cookie realm="Django"'})
        return None

    def _tell_once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.error(what)

    # Bearer tokens

    @property
    def settings(self) -> tuple[AuthSettings | None, TokenVerifier | None]:
        """For the SDK: what ``auth`` says."""
        if self.auth is None or isinstance(self.auth, AuthSettings):
            return self.auth, self.token_verifier
        # Without a resource server, nothing is published: the issuer is never told to anybody.
        issuer = AnyHttpUrl("https://no-issuer.invalid")
        scopes = list(self.required_scopes)
        return AuthSettings(issuer_url=issuer, resource_server_url=None, required_scopes=scopes), self.auth

    def checked(self, verifier: TokenVerifier) -> TokenVerifier:
        """``verifier``, which finds the Django user too, and whose failures are told from its refusals."""
        return _CheckedVerifier(verifier, self.user_for_token or getattr(verifier, "user_for_token", None))


def _is_logged_in(scope: Scope) -> bool:
    user = scope.get("user")
    return user is not None and bool(user.is_authenticated)


def begin_request() -> None:
    """A request begins: nothing is known of its token yet."""
    current_request.update(token_user=None)


def with_user_of_token(scope: Scope) -> Scope:
    """The scope with the Django user of the request's token, where there is one."""
    user = current_request.get().token_user
    return scope if user is None else {**scope, "user": user}


class _CheckedVerifier:
    """A token verifier that never opens a door by failing."""

    def __init__(self, verifier: TokenVerifier, user_for_token: UserForToken | None) -> None:
        self._verifier = verifier
        self._user_for_token = user_for_token
        self._threads = DjangoThreads(LOOKUP_THREADS)

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            async with thread_of_its_own():  # for the async ORM, in the verifier too
                accepted = await self._verifier.verify_token(token)
                if accepted is None or self._user_for_token is None:
                    return accepted
                user = await self._threads.call(self._user_for_token, accepted)
            if user is None or not user.is_active:
                logger.info("Refused a bearer token: %s.", "it has no user" if user is None else "its user is inactive")
                return None
        except Exception:
            _log_without(token)
            raise VerifierFailed from None
        current_request.update(token_user=user)
        return accepted


def _log_without(token: str) -> None:
    """Log the exception that is being handled: such errors like to quote what they could not read."""
    text = traceback.format_exc()
    if len(token) > 3:  # a shorter one is no secret, and is found in any text
        for quoted in {token, repr(token)[1:-1]}:
            text = text.replace(quoted, "[the token]")
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 0, "A bearer token could not be verified; its request gets 503.", (), None
    )
    record.exc_text = escaped_lines(text)
    logger.handle(record)
