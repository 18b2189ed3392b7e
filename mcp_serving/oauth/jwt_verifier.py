"""Verifies the access tokens of an external identity provider: Keycloak, Entra, Auth0, Okta and others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import jwt
from django.contrib.auth import get_user_model

from mcp_serving.security.user_tokens import UserAccessToken, UserVerifier

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those with a public key. With the others, who can verify a token can make one."""

LEEWAY = 30
"""Seconds by which the clocks of the provider and of this machine may differ."""

LONGEST_TOKEN = 16 * 1024


class JWTVerifier(UserVerifier):
    """Lets in clients whose user has signed in at an identity provider.

    The signature, issuer, audience and expiry of each token are checked. The keys come from the provider: they are
    fetched again every hour, and at most once a minute when a token names a key that is not among them.

    Args:
        issuer: the provider's issuer URL, exactly as its tokens have it.
        audience: for whom the provider issues tokens of this MCP server, or several names of it.
        user_claim: the claim that names an existing Django user. ``email`` counts only if the provider says that it
            has verified the address.
        user_field: the field of the user model that has the value of the claim; by default ``USERNAME_FIELD``.
        user_for_claims: takes the place of the lookup. It is called with the claims in a thread, may use the ORM,
            and returns a user, which it may have created, or None.
        jwks_url: where the keys are; by default as the issuer's discovery document says.

    Raises:
        ValueError: a URL has no https, or the lookup is described twice.

    Example:
        >>> verifier = JWTVerifier(
        ...     "https://login.example.com/realms/staff", "https://example.com/mcp", user_claim="preferred_username"
        ... )
        >>> handler = StreamableHTTPHandler(server, auth=verifier)
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        user_claim: str = "sub",
        user_field: str | None = None,
        user_for_claims: Callable[[dict[str, Any]], AbstractBaseUser | None] | None = None,
        jwks_url: str | None = None,
    ) -> None:
        for name, url in (("issuer", issuer), ("jwks_url", jwks_url)):
            if url is not None and not _is_safe(url):
                raise ValueError(f"{name} is {url!r}; it has to begin with https://, unless it is on this machine.")
        if not audience:
            raise ValueError("audience is empty; without it, a token for any other service would be accepted.")
        if user_for_claims is not None and (user_claim != "sub" or user_field is not None):
            raise ValueError("user_for_claims takes the place of user_claim and user_field: give it alone.")
        super().__init__()
        self._issuer = issuer
        self._audience = [audience] if isinstance(audience, str) else list(audience)
        self._user_claim = user_claim
        self._user_field = user_field
        self._user_for_claims = user_for_claims or self._existing_user
        self._keys = _Keys(issuer, jwks_url)

    def look_up(self, text: str) -> UserAccessToken | None:
        claims = self._claims(text)
        if claims is None:
            return None
        user = self._user_for_claims(claims)
        if user is None or not user.is_active:
            logger.info("Refused a token of %s: it has no active Django user.", self._issuer)
            return None
        return UserAccessToken.of(
            user,
            token=text,
            client_id=str(claims.get("client_id") or claims.get("azp") or claims.get("cid") or self._audience[0]),
            scopes=_scopes(claims),
            expires_at=int(claims["exp"]),
            claims=claims,
        )

    def authorization_server(self, site: str) -> str:
        return self._issuer

    def scopes_supported(self) -> Sequence[str]:
        """None: which ones there are is known to the provider. ``required_scopes`` of the handler are told."""
        return ()

    def _claims(self, text: str) -> dict[str, Any] | None:
        """The claims of a token if it is valid; no key is fetched for a token of somebody else."""
        try:
            unverified = jwt.decode_complete(text[: LONGEST_TOKEN + 1], options={"verify_signature": False})
        except jwt.InvalidTokenError:
            return None
        if unverified["payload"].get("iss") != self._issuer:
            return None
        key = self._keys.get(unverified["header"].get("kid"))
        if key is None:
            logger.info("Refused a token of %s: its key is not among those of the issuer.", self._issuer)
            return None
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[each for each in ALGORITHMS if key.algorithm_name in (each, None)],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            logger.info("Refused a token of %s: %s.", self._issuer, str(error).removesuffix("."))
            return None
        return claims

    def _existing_user(self, claims: dict[str, Any]) -> AbstractBaseUser | None:
        value = claims.get(self._user_claim)
        if not isinstance(value, str) or not value:
            logger.info("Refused a token of %s: it has no claim %r.", self._issuer, self._user_claim)
            return None
        if self._user_claim == "email" and claims.get("email_verified") is not True:
            logger.info("Refused a token of %s: its email address is not verified.", self._issuer)
            return None
        model = get_user_model()
        field = self._user_field or model.USERNAME_FIELD
        users = list(model._default_manager.filter(**{field: value})[:2])
        if len(users) > 1:
            logger.warning("Refused a token of %s: several users have %s=%r.", self._issuer, field, value)
        return users[0] if len(users) == 1 else None


def _scopes(claims: dict[str, Any]) -> list[str]:
    """The scopes: a text with spaces (RFC 9068) or a list, as ``scope`` or, at Entra and Okta, ``scp``."""
    scopes = claims.get("scope", claims.get("scp", ""))
    return scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))


class _Keys:
    """The public keys of an issuer."""

    MAX_AGE = 3600.0
    """Seconds after which the keys are fetched again."""
    PAUSE = 60.0
    """Seconds between two fetches: tokens with made-up keys must not become requests to the provider."""
    TIMEOUT = 5.0
    LARGEST = 256 * 1024

    def __init__(self, issuer: str, url: str | None) -> None:
        self._issuer = issuer
        self._url = url
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched = self._tried = float("-inf")
        self._lock = Lock()

    def get(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key with this id; a token without an id has the only key of its issuer.

        Raises:
            OSError, ValueError: there are no keys yet, and they cannot be fetched.
        """
        with self._lock:
            is_old = monotonic() - self._fetched > self.MAX_AGE
            if (is_old or self._find(key_id) is None) and monotonic() - self._tried > self.PAUSE:
                self._fetch()
            if not self._keys:
                raise OSError(f"The keys of {self._issuer} could not be fetched; the next attempt is within a minute.")
            return self._find(key_id)

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def _fetch(self) -> None:
        self._tried = monotonic()
        try:
            found = jwt.PyJWKSet.from_dict(self._get_json(self._url or self._discovered()))
        except (OSError, ValueError, KeyError, jwt.PyJWTError):
            if not self._keys:
                raise
            logger.warning("The keys of %s could not be fetched; those from before are used.", self._issuer)
            return
        # A key for encryption, or one that is shared, signs no token.
        keys = [key for key in found.keys if key.public_key_use in (None, "sig") and key.key_type != "oct"]
        self._keys = {key.key_id: key for key in keys}
        self._fetched = self._tried

    def _discovered(self) -> str:
        document = self._get_json(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != self._issuer:
            raise ValueError(f"The discovery document of {self._issuer} names the issuer {document.get('issuer')!r}.")
        url = str(document["jwks_uri"])
        if not _is_safe(url):
            raise ValueError(f"The discovery document of {self._issuer} names {url!r}, which has no https.")
        return url

    def _get_json(self, url: str) -> dict[str, Any]:
        request = Request(url, headers={"Accept": "application/json"})
        with urlopen(request, timeout=self.TIMEOUT) as response:
            body = response.read(self.LARGEST + 1)
        if len(body) > self.LARGEST:
            raise ValueError(f"{url} has more than {self.LARGEST} bytes.")
        document = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError(f"{url} is not a JSON object.")
        return document
