"""Where clients find the authorization server: RFC 8414 and OpenID discovery, on every path that they try."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.oauth import SITE, Browser

from django.test import override_settings  # isort: skip - after Django is set up
from django.urls import set_script_prefix  # isort: skip

PATHS = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]


def document(path: str, **options: Any) -> dict[str, Any]:
    response = Browser().get(path, **options)
    assert response.status_code == 200, response.content
    assert response["Access-Control-Allow-Origin"] == "*"
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("path", PATHS)
def test_the_document_has_what_mcp_clients_look_for(path: str) -> None:
    found = document(path)
    assert found["issuer"] == SITE
    assert found["authorization_endpoint"] == f"{SITE}/oauth/authorize/"
    assert found["token_endpoint"] == f"{SITE}/oauth/token/"
    assert found["registration_endpoint"] == f"{SITE}/oauth/register/"
    assert found["revocation_endpoint"] == f"{SITE}/oauth/revoke/"
    assert found["response_types_supported"] == ["code"]
    assert found["grant_types_supported"] == ["authorization_code", "refresh_token"]
    assert found["code_challenge_methods_supported"] == ["S256"]
    assert found["token_endpoint_auth_methods_supported"] == ["none", "client_secret_basic", "client_secret_post"]
    assert found["scopes_supported"] == ["notes:read", "notes:write"]
    assert found["client_id_metadata_document_supported"] is True
    assert found["authorization_response_iss_parameter_supported"] is True
    assert "introspection_endpoint" not in found


def test_a_client_that_looks_for_an_openid_provider_finds_what_one_has_to_name() -> None:
    found = document("/.well-known/openid-configuration")
    assert found["subject_types_supported"] == ["public"]
    assert found["id_token_signing_alg_values_supported"] == ["RS256"]
    assert document(found["jwks_uri"].removeprefix(SITE)) == {"keys": []}


@pytest.mark.parametrize("path", PATHS)
def test_the_issuer_is_never_what_a_request_names(path: str) -> None:
    assert Browser().get(f"{path}/evil").status_code == 404
    assert Browser().get(f"{path}/mcp").status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_below_a_url_prefix_the_document_is_found_with_and_without_the_issuers_path(path: str) -> None:
    with override_settings(FORCE_SCRIPT_NAME="/site"):
        set_script_prefix("/site/")
        try:
            for suffix in ("", "/site", "/site/"):
                found = document(f"{path}{suffix}")
                assert found["issuer"] == f"{SITE}/site"
                assert found["token_endpoint"] == f"{SITE}/site/oauth/token/"
        finally:
            set_script_prefix("/")


def test_an_issuer_that_is_set_is_the_issuer_everywhere() -> None:
    from django.conf import settings

    issuer = "https://login.example/tenant"
    with override_settings(OAUTH2_PROVIDER={**settings.OAUTH2_PROVIDER, "OIDC_ISS_ENDPOINT": issuer}):
        for path in PATHS:
            for suffix in ("", "/tenant"):
                assert document(f"{path}{suffix}")["issuer"] == issuer


def test_with_openid_connect_the_document_has_its_claims_and_the_registration_too() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with_key = {**settings.OAUTH2_PROVIDER, "OIDC_ENABLED": True, "OIDC_RSA_PRIVATE_KEY": key.decode()}
    with override_settings(OAUTH2_PROVIDER=with_key):
        found = document("/.well-known/openid-configuration")
        assert found["userinfo_endpoint"] == f"{SITE}/oauth/userinfo/"
        assert found["registration_endpoint"] == f"{SITE}/oauth/register/"
        assert "sub" in found["claims_supported"]
        assert [key["alg"] for key in document("/.well-known/jwks.json")["keys"]] == ["RS256"]


@pytest.mark.parametrize("path", [*PATHS, "/oauth/token/", "/oauth/register/", "/oauth/revoke/"])
def test_a_client_that_is_a_page_of_another_origin_may_ask(path: str) -> None:
    preflight = Browser().options(path, HTTP_ORIGIN="https://client.example")
    assert preflight.status_code == 204
    assert preflight["Access-Control-Allow-Origin"] == "*"
    assert "MCP-Protocol-Version" in preflight["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in preflight


@pytest.mark.parametrize("path", ["/oauth/authorize/", "/oauth/connected-apps/"])
def test_no_script_of_another_origin_reads_a_page_of_the_user(path: str) -> None:
    assert "Access-Control-Allow-Origin" not in Browser().get(path, HTTP_ORIGIN="https://client.example")
