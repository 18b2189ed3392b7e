"""Access control of a handler: its options, and the decision about each request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from mcp.server.auth.routes import build_resource_metadata_url
from mcp.server.auth.settings import AuthSettings

from mcp_serving import sdk
from mcp_serving.security.bearer_tokens import BearerTokens, Caller, VerifierFailed, bearer_token
from mcp_serving.security.resource_metadata import ResourceMetadata, SignInVerifier, challenge, resource_url
from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken, TokenVerifier
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.security.bearer_tokens import Resource, UserForToken

logger = logging.getLogger(__name__)

ACCESS_OPTIONS = "public=True, login_required=True or auth=..."

_VERIFIER_FAILED = Refusal(503, "Try again later.", headers={"retry-after": "5"})


class Callers(NamedTuple):
    """Who may call a handler: everybody, users who are logged in, callers with a token that has these scopes."""

    everybody: bool
    logged_in: bool
    with_token: bool
    scopes: tuple[str, ...]


class Access:
    """Who may call a handler.

    Args:
        server: the MCP server. A server of the SDK may have ``auth`` itself.
        public: everybody.
        login_required: users who are logged in, by ``scope["user"]``.
        auth: callers with a bearer token: a verifier, several verifiers, or the SDK's ``AuthSettings`` with a
            ``token_verifier``.
        token_verifier: the verifier for ``AuthSettings``.
        required_scopes: the scopes that each token needs, where ``auth`` is not ``AuthSettings``.
        user_for_token: finds the Django user of a token; by default the verifier's own ``user_for_token``, if any.
        paths: where the handler is mounted, relative to the router; filled by ``urlpatterns``.
        scopes: returns the scopes that the tools, resources and prompts of the server require.

    Raises:
        ValueError, TypeError: two of the options contradict each other, or one has a value of the wrong kind.
    """

    def __init__(
        self,
        server: sdk.SDKServer,
        *,
        public: bool = False,
        login_required: bool = False,
        auth: AuthSettings | TokenVerifier | Sequence[TokenVerifier] | None = None,
        token_verifier: TokenVerifier | None = None,
        required_scopes: Sequence[str] = (),
        user_for_token: UserForToken | None = None,
        paths: Sequence[str] = (),
        scopes: Callable[[], Sequence[str]] = list,
    ) -> None:
        self._public = public
        self._login_required = login_required
        own_settings, own_verifier = sdk.own_auth(server)
        self._must_not_contradict(auth is not None, own_verifier is not None)
        verifiers = _verifiers(auth, token_verifier)
        if isinstance(required_scopes, str):
            raise TypeError(f"required_scopes is {required_scopes!r}; it has to be a list of scopes.")
        if required_scopes and isinstance(auth, AuthSettings):
            raise ValueError("required_scopes belongs in AuthSettings(required_scopes=...).")
        if required_scopes and not verifiers:
            raise ValueError("required_scopes needs auth=..., the verifier of the tokens that have them.")
        self.auth_settings = auth if isinstance(auth, AuthSettings) else own_settings
        """The SDK's settings, from which it makes its routes for OAuth."""
        if own_verifier is not None:
            verifiers = [own_verifier]
        if user_for_token is not None and not verifiers:
            raise ValueError("user_for_token needs auth=..., on the handler or on the server: there is no token.")
        configured = self.auth_settings
        self._required_scopes = list(required_scopes if configured is None else configured.required_scopes or ())
        needs_resource = configured is not None and configured.validate_token_resource is True
        self._tokens = BearerTokens(verifiers, user_for_token, needs_resource=needs_resource) if verifiers else None
        with_sign_in = [each for each in verifiers if isinstance(each, SignInVerifier)]
        self._server_scopes = scopes
        self.metadata = ResourceMetadata(paths, with_sign_in, self._all_scopes) if with_sign_in else None
        """The RFC 9728 documents of the handler; None where no verifier knows an authorization server."""
        self._logged: set[str] = set()

    def _must_not_contradict(self, auth: bool, own_auth: bool) -> None:
        given = {
            "public": self._public,
            "login_required": self._login_required,
            "auth": auth,
            "the server's own auth": own_auth,
        }
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1 and ("public" in names or (auth and own_auth)):
            raise ValueError(
                f"The handler has {' and '.join(names)}, which contradict each other: give it {ACCESS_OPTIONS}. "
                "login_required=True and auth=... go together, and auth may be a list."
            )

    def _all_scopes(self) -> list[str]:
        return list(dict.fromkeys([*self._required_scopes, *self._server_scopes()]))

    @property
    def is_configured(self) -> bool:
        """Whether one of the access options is given."""
        return self._public or self._login_required or self._tokens is not None

    @property
    def callers(self) -> Callers:
        """Who may call, for people to read."""
        return Callers(self._public, self._login_required, self._tokens is not None, tuple(self._required_scopes))

    # One request

    def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let ``app`` answer in the name of the caller, or refuse the request before anything of it is parsed."""
        if self._public or not self.is_configured:
            return app(scope, receive, send)
        return self._serve_admitted(app, scope, receive, send)

    async def _serve_admitted(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            admitted = await self._admit(scope)
        except VerifierFailed:
            admitted = _VERIFIER_FAILED
        if isinstance(admitted, Caller):
            with admitted.current():
                await app(admitted.scope(scope), receive, send)
        else:
            await (admitted or app)(scope, receive, send)

    async def serve_anybody(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let ``app`` answer, in the name of the caller if the request has a token that is accepted."""
        try:
            caller = await self._caller(scope)
        except VerifierFailed:
            await _VERIFIER_FAILED(scope, receive, send)
            return
        if caller is None:
            await app(scope, receive, send)
        else:
            with caller.current():
                await app(caller.scope(scope), receive, send)

    def refusal_without_access_option(self) -> Refusal | None:
        """Why every request is refused: the handler has no access option, and ``DEBUG`` is off."""
        if self.is_configured or settings.DEBUG:
            return None
        self._log_once(
            f"Refused every request: DEBUG is off, and the handler does not say who may call: give it {ACCESS_OPTIONS}"
        )
        return Refusal(403, "This MCP endpoint is not open: its handler does not say who may call.")

    async def _admit(self, scope: Scope) -> Caller | Refusal | None:
        """The caller by a token, None for a caller who is logged in, or why the request is refused."""
        has_token = bearer_token(scope) is not None
        if self._login_required and not (has_token and self._tokens is not None):
            if _is_logged_in(scope):
                return None
            if "user" not in scope:
                self._log_once(
                    "login_required=True needs to know who is logged in. Put the handler into "
                    "channels.auth.AuthMiddlewareStack, or another middleware that fills scope['user']."
                )
        caller = await self._caller(scope)
        if caller is None:
            return self._not_admitted(scope, has_token)
        missing = [each for each in self._required_scopes if each not in caller.token.scopes]
        return self.insufficient_scope(scope, caller.token, missing) if missing else caller

    def insufficient_scope(self, scope: Scope, token: AccessToken, missing: Sequence[str]) -> Refusal:
        """Why a request is refused whose token lacks scopes; the client can ask its user for them (step-up)."""
        logger.info("Refused a request for %.200r: its token lacks the scope %s.", scope["path"], missing[0])
        # With those that it has: a client that asks for the missing ones alone would lose these.
        scopes = dict.fromkeys([*token.scopes, *missing])
        told = f"The token lacks the scope {missing[0]}."
        return self._refusal(403, told, scope, "insufficient_scope", list(scopes))

    async def _caller(self, scope: Scope) -> Caller | None:
        text = bearer_token(scope)
        if self._tokens is None or not text:
            return None
        return await self._tokens.caller(text, self._resource(scope))

    def _resource(self, scope: Scope) -> Resource:
        if self.auth_settings is None:
            return lambda: resource_url(scope)
        url = self.auth_settings.resource_server_url
        return (lambda: str(url)) if self.auth_settings.validate_token_resource else None

    def _not_admitted(self, scope: Scope, has_token: bool) -> Refusal:
        if self._tokens is None:
            logger.info("Refused a request for %.200r: nobody is logged in.", scope["path"])
            return Refusal(401, "Log in first.", headers={"www-authenticate": 'Cookie realm="Django"'})
        reason = "its bearer token is not accepted" if has_token else "it has no bearer token"
        logger.info("Refused a request for %.200r: %s.", scope["path"], reason)
        told = "The bearer token is not accepted." if has_token else "A bearer token is required."
        return self._refusal(401, told, scope, "invalid_token" if has_token else None)

    def _refusal(
        self, status: int, told: str, scope: Scope, error: str | None, scopes: Sequence[str] | None = None
    ) -> Refusal:
        metadata = None
        if scopes is None:
            scopes = self._required_scopes or ([] if self.metadata is None else self.metadata.scopes())
        if self.metadata is not None:
            metadata = self.metadata.url(scope)
        elif self.auth_settings is not None and self.auth_settings.resource_server_url is not None:
            metadata = str(build_resource_metadata_url(self.auth_settings.resource_server_url))
        return Refusal(status, told, headers={"www-authenticate": challenge(error, metadata, scopes)})

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            logger.error(message)


def _verifiers(
    auth: AuthSettings | TokenVerifier | Sequence[TokenVerifier] | None, token_verifier: TokenVerifier | None
) -> list[TokenVerifier]:
    """The verifiers that ``auth`` and ``token_verifier`` name."""
    if isinstance(auth, AuthSettings):
        if token_verifier is None:
            raise ValueError("auth=AuthSettings(...) needs a token_verifier beside it.")
        return [token_verifier]
    if token_verifier is not None:
        raise ValueError("token_verifier needs auth=AuthSettings(...) beside it; alone, it is auth=... itself.")
    if auth is None:
        return []
    verifiers: list[Any] = list(auth) if isinstance(auth, Sequence) and not isinstance(auth, str) else [auth]
    if not verifiers:
        raise ValueError("auth is an empty list; it has to name at least one verifier.")
    for each in verifiers:
        if not hasattr(each, "verify_token"):
            raise TypeError(
                f"auth is {each!r}; it has to be the SDK's AuthSettings, a verifier with verify_token(), or a list of "
                "verifiers."
            )
    return verifiers


def _is_logged_in(scope: Scope) -> bool:
    user = scope.get("user")
    return user is not None and bool(user.is_authenticated)
