"""Tokens of an external identity provider: their claims, their keys, and a provider in a process of its own."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from mcp_serving.oauth import JWTVerifier
from mcp_serving.oauth import jwt_verifier as module
from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.oauth import challenge_of, hidden_fields

pytestmark = pytest.mark.usefixtures("users_of_its_own")

AUDIENCE = "https://site.example/mcp"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


KEY, OTHER_KEY = new_key(), new_key()


class Issuer:
    """An identity provider on this machine that answers with its discovery document and its keys."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.keys: dict[str, rsa.RSAPrivateKey] = {"one": KEY}
        self.requests: list[str] = []
        self.fails = False
        self.named = self.url

    def answer(self, path: str) -> dict[str, Any] | None:
        self.requests.append(path)
        if self.fails:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.named, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [self._public(name, key) for name, key in self.keys.items()]}

    def _public(self, name: str, key: rsa.RSAPrivateKey) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        return {**found, "kid": name, "use": "sig", "alg": "RS256"}

    def token(self, key: Any = KEY, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
        made = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "exp": int(time.time()) + 60,
            "scope": "notes:read notes:write",
            "client_id": "client",
            **claims,
        }
        given = {name: value for name, value in made.items() if value is not None}
        return jwt.encode(given, key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = provider.answer(self.path)
            self.send_response(503 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Issuer(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield provider
        server.shutdown()
        thread.join()


def test_a_token_brings_its_user_its_client_and_its_scopes(issuer: Issuer) -> None:
    found = JWTVerifier(issuer.url, AUDIENCE).look_up(issuer.token())
    assert found is not None
    assert (found.subject, found.client_id) == (str(in_django.user("ann").pk), "client")
    assert found.scopes == ["notes:read", "notes:write"]
    assert found.claims is not None
    assert found.claims["iss"] == issuer.url
    assert found._user == in_django.user("ann")


SCOPES: dict[str, dict[str, Any]] = {
    "a list": {"scope": ["notes:read"]},
    "Entra": {"scope": None, "scp": "notes:read"},
    "Okta": {"scope": None, "scp": ["notes:read"]},
}


@pytest.mark.parametrize("claims", SCOPES.values(), ids=SCOPES)
def test_each_provider_has_its_own_way_to_write_scopes(claims: dict[str, Any], issuer: Issuer) -> None:
    found = JWTVerifier(issuer.url, AUDIENCE).look_up(issuer.token(**claims))
    assert found is not None
    assert found.scopes == ["notes:read"]


def test_the_audience_may_be_one_of_several(issuer: Issuer) -> None:
    assert JWTVerifier(issuer.url, ["other", AUDIENCE]).look_up(issuer.token(aud=["x", AUDIENCE])) is not None


REFUSED: dict[str, dict[str, Any]] = {
    "of another audience": {"aud": "https://other.example"},
    "without an audience": {"aud": None},
    "expired": {"exp": 1},
    "that never expires": {"exp": None},
    "not valid yet": {"nbf": int(time.time()) + 3600},
    "of an unknown user": {"sub": "stranger"},
    "of an inactive user": {"sub": "gone"},
    "without a user": {"sub": None},
    "signed by another key": {"key": OTHER_KEY},
    "of an unknown key": {"kid": "two"},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_token_that_is_no_good_is_refused(changes: dict[str, Any], issuer: Issuer) -> None:
    assert JWTVerifier(issuer.url, AUDIENCE).look_up(issuer.token(**changes)) is None


def test_a_token_without_a_signature_or_signed_with_the_public_key_is_refused(issuer: Issuer) -> None:
    verifier = JWTVerifier(issuer.url, AUDIENCE)
    assert verifier.look_up(issuer.token(None, algorithm="none")) is None
    # The public key as the secret of HS256: by hand, because PyJWT refuses to sign so.
    public = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    claims = issuer.token().split(".")[1]
    signed = f"{encoded(json.dumps({'alg': 'HS256', 'kid': 'one'}).encode())}.{claims}"
    assert verifier.look_up(f"{signed}.{encoded(hmac.digest(public, signed.encode(), 'sha256'))}") is None


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("text", ["", "mcp_abc_def", "a.b.c", "x" * 20_000])
def test_a_text_that_is_no_token_of_the_issuer_costs_no_request(text: str, issuer: Issuer) -> None:
    verifier = JWTVerifier(issuer.url, AUDIENCE)
    assert verifier.look_up(text) is None
    assert verifier.look_up(issuer.token(iss="https://evil.example")) is None
    assert issuer.requests == []


# Users


def test_a_user_is_found_by_the_claim_and_field_that_the_project_names(issuer: Issuer) -> None:
    ann = in_django.user("ann")
    verifier = JWTVerifier(issuer.url, AUDIENCE, user_claim="employee", user_field="pk")
    assert verifier.look_up(issuer.token(employee=str(ann.pk))) is not None
    assert verifier.look_up(issuer.token()) is None


def test_an_email_address_counts_only_where_the_provider_has_verified_it(issuer: Issuer) -> None:
    ann = in_django.user("ann")
    ann.email = "ann@site.example"
    ann.save()
    verifier = JWTVerifier(issuer.url, AUDIENCE, user_claim="email", user_field="email")
    assert verifier.look_up(issuer.token(email=ann.email, email_verified=True)) is not None
    assert verifier.look_up(issuer.token(email=ann.email, email_verified=False)) is None
    assert verifier.look_up(issuer.token(email=ann.email)) is None
    bob = in_django.user("bob")
    bob.email = ann.email
    bob.save()
    assert verifier.look_up(issuer.token(email=ann.email, email_verified=True)) is None  # which of the two?


def test_a_function_of_the_project_may_create_the_user(issuer: Issuer) -> None:
    model = type(in_django.user("ann"))

    def create(claims: dict[str, Any]) -> Any:
        return model.objects.get_or_create(username=f"sso-{claims['sub']}")[0]

    found = JWTVerifier(issuer.url, AUDIENCE, user_for_claims=create).look_up(issuer.token(sub="new"))
    assert found is not None
    assert found._user == in_django.user("sso-new")


# Keys


def test_keys_are_fetched_once_and_again_when_a_token_names_a_new_one(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = JWTVerifier(issuer.url, AUDIENCE)
    for _ in range(3):
        assert verifier.look_up(issuer.token()) is not None
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]
    issuer.keys = {"two": OTHER_KEY}
    renewed = issuer.token(OTHER_KEY, "two")
    # Made-up keys do not become requests: there is one attempt a minute.
    assert verifier.look_up(renewed) is None
    assert len(issuer.requests) == 2
    monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + 61)
    assert verifier.look_up(renewed) is not None
    assert verifier.look_up(issuer.token()) is None  # the old key is gone


def test_an_issuer_that_is_away_costs_nothing_once_its_keys_are_known(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = JWTVerifier(issuer.url, AUDIENCE)
    assert verifier.look_up(issuer.token()) is not None
    issuer.fails = True
    monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + 2 * 3600)
    assert verifier.look_up(issuer.token()) is not None
    assert "could not be fetched; those from before are used" in caplog.text


def test_an_issuer_that_is_away_at_the_start_raises_so_that_the_request_gets_503(issuer: Issuer) -> None:
    issuer.fails = True
    verifier = JWTVerifier(issuer.url, AUDIENCE)
    with pytest.raises(OSError):
        verifier.look_up(issuer.token())
    with pytest.raises(OSError, match="the next attempt is within a minute"):
        verifier.look_up(issuer.token())
    assert len(issuer.requests) == 1


def test_a_discovery_document_of_another_issuer_is_refused(issuer: Issuer) -> None:
    issuer.named = "https://evil.example"
    with pytest.raises(ValueError, match=r"names the issuer 'https://evil\.example'"):
        JWTVerifier(issuer.url, AUDIENCE).look_up(issuer.token())


def test_the_keys_may_be_at_an_address_that_the_project_knows(issuer: Issuer) -> None:
    verifier = JWTVerifier(issuer.url, AUDIENCE, jwks_url=f"{issuer.url}/keys")
    assert verifier.look_up(issuer.token()) is not None
    assert issuer.requests == ["/keys"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no https": ({"issuer": "http://login.example"}, "issuer is 'http://login.example'; it has to begin with https"),
    "keys without https": ({"jwks_url": "http://login.example"}, "jwks_url is 'http://login.example'"),
    "no audience": ({"audience": ""}, "audience is empty"),
    "two lookups": ({"user_claim": "email", "user_for_claims": print}, "give it alone"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_found_where_the_verifier_is_made(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        JWTVerifier(**{"issuer": "https://login.example", "audience": AUDIENCE, **options})


# A provider in a process of its own: django-oauth-toolkit's OpenID Connect side


@pytest.mark.process
def test_a_user_who_signed_in_at_a_provider_in_another_process_is_let_in() -> None:
    from tests.support.access_servers import logged_in

    pem = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    changes = {
        "OIDC_ENABLED": True,
        "OIDC_RSA_PRIVATE_KEY": pem,
        "OAUTH2_VALIDATOR_CLASS": "tests.project.provider.NamingValidator",
        "SCOPES": {"openid": "Know who you are"},
    }
    env = {
        **in_django.ENVIRONMENT,
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth",
        "TEST_OAUTH": json.dumps(changes),
    }
    with serving("uvicorn", "tests.project.oauth_asgi", env=env) as (_, address):
        redirect, secret = "http://127.0.0.1:1/callback", "v" * 50
        with httpx2.Client(base_url=address, headers=logged_in("ann"), timeout=30) as browser:
            metadata = {"redirect_uris": [redirect], "token_endpoint_auth_method": "none"}
            client_id = browser.post("/oauth/register/", json=metadata).json()["client_id"]
            query = {
                "response_type": "code",
                "client_id": client_id,
                "redirect_uri": redirect,
                "scope": "openid",
                "code_challenge": challenge_of(secret),
                "code_challenge_method": "S256",
                "resource": f"{address}/mcp",
            }
            page = browser.get("/oauth/authorize/", params=query)
            fields = {**hidden_fields(page.text), "allow": "on"}
            cookies = f"{browser.headers['Cookie']}; csrftoken={page.cookies['csrftoken']}"
            answer = browser.post(page.url, data=fields, headers={"Cookie": cookies})
            assert answer.status_code == 302, answer.text
            code = dict(parse_qsl(urlsplit(answer.headers["location"]).query))["code"]
            grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect}
            told = browser.post("/oauth/token/", data={**grant, "client_id": client_id, "code_verifier": secret}).json()
        verifier = JWTVerifier(address, client_id, user_claim="preferred_username")
        found = verifier.look_up(told["id_token"])
        assert found is not None
        assert found._user == in_django.user("ann")
        assert JWTVerifier(address, "another client", user_claim="preferred_username").look_up(told["id_token"]) is None
        # A client that registered itself gets an ID token at all: see _sign_id_tokens.
        assert jwt.get_unverified_header(told["id_token"])["alg"] == "RS256"
