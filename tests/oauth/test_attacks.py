"""Attacks on signing in, one test each; those on registration are in test_registration.py."""

from __future__ import annotations

import base64
import threading
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.support import in_django
from tests.support.oauth import (
    RESOURCE,
    SITE,
    Browser,
    OAuthClient,
    ask,
    browser_of,
    challenge_of,
    client_of,
    hidden_fields,
    parameters_of,
)

from django.db import connections  # isort: skip - after Django is set up
from django.test.utils import CaptureQueriesContext  # isort: skip
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken  # isort: skip

from mcp_serving.oauth.provider.validator import Validator  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")


def error_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]


def tokens_of(client: OAuthClient) -> int:
    return int(AccessToken.objects.filter(application__client_id=client.client_id, user__isnull=False).count())


def test_a_token_that_was_issued_for_another_site_is_refused() -> None:
    token = client_of("ann").tokens()["access_token"]
    for resource in ("https://other.example/mcp", "https://testserver/mcp", "http://testserver.evil.example/mcp"):
        AccessToken.objects.filter(user__isnull=False).update(resource=[resource])
        assert ask(token).status_code == 401


def test_a_host_header_does_not_turn_a_token_for_one_host_into_one_for_another() -> None:
    token = client_of("ann").tokens()["access_token"]
    assert ask(token, Host="localhost").status_code == 401
    assert ask(token, Host="evil.example").status_code == 421


def test_a_client_cannot_exchange_its_code_for_a_token_of_another_resource() -> None:
    client = client_of("ann")
    assert error_of(client.exchange(client.code(), resource=f"{SITE}/reading")) == (400, "invalid_target")


def test_a_client_cannot_turn_its_refresh_token_into_one_for_another_resource() -> None:
    client = client_of("ann")
    refresh = client.tokens()["refresh_token"]
    assert error_of(client.refresh(refresh, resource=f"{SITE}/reading")) == (400, "invalid_target")


def test_consent_to_another_api_of_the_site_does_not_become_consent_to_the_mcp_server() -> None:
    # Such a grant has no resource: it comes from a view of the project that uses django-oauth-toolkit by itself.
    client = client_of("ann")
    code = client.code()
    Grant.objects.filter(code=code).update(resource=[])
    assert error_of(client.exchange(code, resource=RESOURCE)) == (400, "invalid_grant")
    tokens: Any = client.exchange(client.code()).json()  # type: ignore[attr-defined]
    RefreshToken.objects.filter(user__isnull=False).update(resource=[])
    assert error_of(client.refresh(tokens["refresh_token"], resource=RESOURCE)) == (400, "invalid_grant")


def test_a_client_cannot_ask_for_more_scopes_when_it_refreshes() -> None:
    client = client_of("ann")
    refresh = client.tokens()["refresh_token"]
    assert error_of(client.refresh(refresh, scope="notes:read notes:write")) == (400, "invalid_scope")


def test_a_code_that_is_used_twice_ends_the_tokens_that_came_from_it() -> None:
    client, other = client_of("ann"), client_of("ann")
    others = other.tokens()["access_token"]
    code = client.code()
    first: Any = client.exchange(code).json()  # type: ignore[attr-defined]
    # The tokens of a refresh belong to the code, too.
    tokens: Any = client.refresh(first["refresh_token"]).json()  # type: ignore[attr-defined]
    assert ask(tokens["access_token"]).status_code == 200
    assert error_of(client.exchange(code)) == (400, "invalid_grant")
    assert ask(tokens["access_token"]).status_code == 401
    assert error_of(client.refresh(tokens["refresh_token"])) == (400, "invalid_grant")
    assert ask(others).status_code == 200


def test_a_used_code_that_is_stolen_without_its_verifier_ends_nothing() -> None:
    client, thief = client_of("ann"), client_of("bob")
    code = client.code()
    token = client.exchange(code).json()["access_token"]  # type: ignore[attr-defined]
    for refused in (
        client.exchange(code, code_verifier="x" * 43),
        client.exchange(code, code_verifier=None),
        thief.exchange(code, code_verifier=client.verifier),
    ):
        assert error_of(refused) == (400, "invalid_grant")
    assert ask(token).status_code == 200


def test_of_two_requests_with_a_code_the_slower_one_ends_the_tokens_of_the_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = client_of("ann")
    code = client.code()
    faster: list[Any] = []
    save = Validator.save_bearer_token

    def save_second(self: Validator, *args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(Validator, "save_bearer_token", save)
        faster.append(client.exchange(code))
        save(self, *args, **kwargs)

    monkeypatch.setattr(Validator, "save_bearer_token", save_second)
    assert error_of(client.exchange(code)) == (400, "invalid_grant")
    assert faster[0].status_code == 200
    assert ask(faster[0].json()["access_token"]).status_code == 401
    assert tokens_of(client) == 0


def test_a_code_is_exchanged_once_also_by_several_requests_at_the_same_time() -> None:
    client = client_of("ann")
    code = client.code()
    statuses: list[int] = []
    start = threading.Barrier(4)

    def exchange() -> None:
        start.wait()
        try:
            statuses.append(client.exchange(code).status_code)
        except Exception:  # a database that is locked counts as refused
            statuses.append(500)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=exchange) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 4
    assert statuses.count(200) <= 1  # none, if a second request has ended the tokens of the first already


def test_a_code_is_worth_nothing_to_another_client() -> None:
    victim, thief = client_of("ann"), client_of("bob")
    thief.verifier = victim.verifier
    assert error_of(thief.exchange(victim.code())) == (400, "invalid_grant")


def test_a_stolen_code_is_worth_nothing_without_the_verifier() -> None:
    client = client_of("ann")
    for wrong in (None, "", "x" * 43, challenge_of(client.verifier)):
        assert client.exchange(client.code(), code_verifier=wrong).status_code == 400
    assert tokens_of(client) == 0


def test_pkce_cannot_be_left_out_or_downgraded() -> None:
    client = client_of("ann")
    told = parameters_of(client.question(code_challenge=None, code_challenge_method=None))
    assert told["error"] == "invalid_request"
    # "plain", said or implied, is refused at the latest when the user has agreed.
    for method in ("plain", None):
        page = client.question(code_challenge=client.verifier, code_challenge_method=method)
        told = parameters_of(client.answer(page) if page.status_code == 200 else page)
        assert told["error"] == "invalid_request"
        assert "code" not in told


def test_pkce_cannot_be_taken_out_of_the_form_that_the_user_sends() -> None:
    client = client_of("ann")
    page: Any = client.question()
    # The challenge of the address counts, and without the address there is none.
    code = parameters_of(client.answer(page, code_challenge="", code_challenge_method=""))["code"]
    assert client.exchange(code, code_verifier=None).status_code == 400
    fields = {**hidden_fields(page.content.decode()), "allow": "on", "code_challenge": "", "code_challenge_method": ""}
    assert parameters_of(client.browser.post("/oauth/authorize/", fields))["error"] == "invalid_request"


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uri": "https://evil.example/callback"},
        {"client_id": "unknown"},
        {"scope": "admin"},
        {"resource": "https://evil.example/mcp"},
        {"resource": ""},
        {"response_type": "token"},
    ],
    ids=["redirect", "client", "scope", "resource", "no resource", "response type"],
)
def test_a_form_that_was_tampered_with_leads_to_no_code(changes: dict[str, str]) -> None:
    client = client_of("ann")
    response: Any = client.answer(client.question(), **changes)
    assert response.status_code in (302, 400)
    if response.status_code == 302:
        assert response["Location"].startswith(client.redirect_uri)
        assert "code" not in parameters_of(response)
    assert not Grant.objects.filter(application__client_id=client.client_id).exists()


def test_each_answer_names_the_issuer_so_that_a_client_notices_another_one() -> None:
    client = client_of("ann")
    issuer = Browser().get("/.well-known/oauth-authorization-server").json()["issuer"]
    for answered in (
        client.answer(client.question()),
        client.answer(client.question(), allow=False),
        client.question(resource=None),
        client.question(iss="https://evil.example"),
    ):
        if answered.status_code == 302:
            assert parameters_of(answered)["iss"] == issuer == SITE
    assert "iss=" not in client.redirect_uri


def test_a_redirect_uri_that_brings_an_issuer_of_its_own_gets_the_right_one() -> None:
    client = client_of("ann", redirect_uri="https://client.example/callback?iss=https://evil.example&more=1")
    location = client.answer(client.question())["Location"]
    assert location.count("iss=") == 1
    assert parameters_of(client.answer(client.question()))["iss"] == SITE
    assert parameters_of(client.answer(client.question()))["more"] == "1"


def test_the_page_of_consent_cannot_be_framed() -> None:
    for answered in (client_of("ann").question(), browser_of("ann").get("/oauth/connected-apps/")):
        assert answered["X-Frame-Options"] == "DENY"
        assert answered["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert "no-store" in answered["Cache-Control"]


def test_consent_cannot_be_forged() -> None:
    client = client_of("ann")
    page: Any = client.question()
    fields = {**hidden_fields(page.content.decode()), "allow": "on"}
    path = page.wsgi_request.get_full_path()
    # A form on another site: it has no token, or that of the attacker, and says where it comes from.
    without = {name: value for name, value in fields.items() if name != "csrfmiddlewaretoken"}
    assert client.browser.post(path, without).status_code == 403
    attackers = hidden_fields(client_of("bob").question().content.decode())["csrfmiddlewaretoken"]
    assert client.browser.post(path, {**fields, "csrfmiddlewaretoken": attackers}).status_code == 403
    assert client.browser.post(path, fields, HTTP_ORIGIN="https://evil.example").status_code == 403
    assert not Grant.objects.filter(application__client_id=client.client_id).exists()
    assert client.browser.post(path, fields).status_code == 302


def test_disconnecting_and_switching_cannot_be_forged_either() -> None:
    client = client_of("ann")
    client.tokens()
    for path in ("/oauth/connected-apps/1/disconnect/", "/oauth/switch-account/"):
        assert client.browser.post(path).status_code == 403
        assert client.browser.get(path).status_code == 405


def test_a_user_who_is_not_logged_in_agrees_to_nothing() -> None:
    client = client_of("ann")
    page: Any = client.question()
    fields = {**hidden_fields(page.content.decode()), "allow": "on"}
    stranger = Browser(enforce_csrf_checks=False)
    response: Any = stranger.post(page.wsgi_request.get_full_path(), fields)
    assert response["Location"].startswith("/login/?next=")
    assert not Grant.objects.filter(application__client_id=client.client_id).exists()


def test_an_open_redirect_is_not_to_be_had_by_asking_not_to_be_asked() -> None:
    client = client_of("ann")
    client.browser = Browser()
    response = client.question(prompt="none", redirect_uri="https://evil.example/callback")
    assert response.status_code == 400
    assert "Location" not in response


def test_a_client_that_staff_trusts_is_still_bound_to_its_resource() -> None:
    client = client_of("ann")
    Application.objects.filter(client_id=client.client_id).update(skip_authorization=True)
    assert parameters_of(client.question(resource=None))["error"] == "invalid_target"
    assert "code" in parameters_of(client.question())


def test_the_token_endpoint_does_not_tell_whether_a_password_is_right() -> None:
    user = in_django.user("ann")
    user.set_password("right")
    user.save()
    client = client_of("bob")
    told = [
        client._token(grant_type="password", username="ann", password=password).json()  # type: ignore[attr-defined]
        for password in ("right", "wrong")
    ]
    assert told[0] == told[1]
    assert "access_token" not in told[0]


@pytest.mark.parametrize(
    "changes",
    [{"code_challenge": "x" * 129}, {"nonce": "n" * 256}, {"nonce": "a\0b"}],
    ids=["long challenge", "long nonce", "null character"],
)
def test_a_value_that_no_column_can_hold_is_refused_before_the_user_is_asked(changes: dict[str, str]) -> None:
    client = client_of("ann")
    assert parameters_of(client.question(**changes))["error"] == "invalid_request"
    page: Any = client.question()
    fields = {**hidden_fields(page.content.decode()), **changes, "allow": "on"}
    response = client.browser.post(page.wsgi_request.get_full_path(), fields)
    assert b"code=" not in response.content + response.headers.get("Location", "").encode()


NULLS: dict[str, dict[str, str]] = {
    "code": {"grant_type": "authorization_code", "code": "a\0b", "redirect_uri": "https://client.example/callback"},
    "refresh token": {"grant_type": "refresh_token", "refresh_token": "a\0b"},
    "client": {"grant_type": "refresh_token", "refresh_token": "a", "client_id": "a\0b"},
    "device": {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": "a\0b"},
}


@pytest.mark.parametrize("fields", NULLS.values(), ids=NULLS)
def test_null_characters_which_postgresql_refuses_do_not_reach_the_database(fields: dict[str, str]) -> None:
    client = client_of("ann")
    client.client_id = fields.get("client_id", client.client_id)
    with CaptureQueriesContext(connections["default"]) as queries:
        assert error_of(client._token(**fields)) == (400, "invalid_request")
    assert queries.captured_queries == []


def test_a_client_whose_credentials_are_no_good_is_unknown() -> None:
    for credentials in ("a\0b:secret", "a", "", ":"):
        header = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        fields = {"grant_type": "refresh_token", "refresh_token": "a"}
        refused = Browser().post("/oauth/token/", fields, HTTP_AUTHORIZATION=header)
        assert refused.status_code == 401, credentials


@pytest.mark.parametrize(
    "resource",
    [f"{SITE}/safe/../mcp", f"{SITE}/safe/%2e%2e/mcp", f"{SITE}/mcp {SITE}/reading", f"{SITE}/mcp#x"],
    ids=["dots", "encoded dots", "two in one", "fragment"],
)
def test_a_resource_that_reads_like_another_one_is_refused(resource: str) -> None:
    assert parameters_of(client_of("ann").question(resource=resource))["error"] == "invalid_target"


@pytest.mark.parametrize(
    "resource",
    ["/mcp2", "/mc", "/mcp/sub", "/MCP", "//mcp", "/%6dcp", "/mcp?x=1", "/"],
)
def test_a_token_for_a_url_that_only_resembles_the_mounts_is_refused(resource: str) -> None:
    token = client_of("ann").tokens()["access_token"]
    AccessToken.objects.filter(user__isnull=False).update(resource=[f"{SITE}{resource}"])
    assert ask(token).status_code == 401


def test_a_token_in_the_address_counts_for_nothing_and_the_scheme_may_be_in_any_case() -> None:
    token = client_of("ann").tokens()["access_token"]
    for name in ("access_token", "token", "authorization"):
        assert ask(None, f"/mcp?{name}={token}").status_code == 401
    assert ask(None, Authorization=f"bEaReR {token}").status_code == 200


def test_the_answer_in_a_fragment_names_the_issuer_once_too() -> None:
    client = client_of("ann")
    location = client.answer(client.question(response_mode="fragment"))["Location"]
    address, _, fragment = location.partition("#")
    assert address == client.redirect_uri
    assert dict(parse_qsl(fragment))["iss"] == SITE
    assert location.count("iss=") == 1


@pytest.mark.parametrize(
    "redirect_uri",
    [
        "http://127.0.0.1:80@evil.example/callback",
        "http://evil.example@127.0.0.1/callback",
        "http://127.0.0.1.evil.example/callback",
        "http://127.0.0.1\\@evil.example/callback",
        "http://127.1/callback",
        "http://localhost/callback",
        "http://127.0.0.1/callback/../elsewhere",
        "http://127.0.0.1/callback?more=1",
        "http://127.0.0.1/callback#more",
        "http://127.0.0.1:1/callback\r\nLocation: https://evil.example/",
        "https://127.0.0.1/callback",
        "//evil.example/callback",
    ],
)
def test_only_the_port_of_an_address_of_the_users_machine_may_differ(redirect_uri: str) -> None:
    client = client_of("ann", redirect_uri="http://127.0.0.1/callback")
    assert client.question(redirect_uri="http://127.0.0.1:5/callback").status_code == 200
    response = client.question(redirect_uri=redirect_uri)
    assert response.status_code == 400
    assert "Location" not in response


def test_a_client_with_a_user_name_in_its_redirect_uri_which_looks_like_a_host_gets_no_code() -> None:
    client = client_of("ann", redirect_uri="https://good.example@evil.example/callback")
    assert client.question().status_code == 400


def test_connected_apps_shows_every_host_of_a_client_in_letters_that_cannot_be_mistaken() -> None:
    client = OAuthClient(browser_of("ann"), redirect_uri="https://evil.example/callback")
    client.register(redirect_uris=["https://\u0430pple.example/", "https://x@good.example/", client.redirect_uri])
    assert client.tokens()
    page = client.browser.get("/oauth/connected-apps/").content.decode()
    assert "xn--pple-43d.example, good.example, evil.example" in page
