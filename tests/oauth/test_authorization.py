"""Signing in through Django's test client: the whole flow, the consent page, and the requests that are refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import in_django
from tests.support.oauth import REDIRECT, RESOURCE, SITE, OAuthClient, browser_of, client_of, parameters_of

from django.test import Client as Browser  # isort: skip - after Django is set up
from django.test import override_settings  # isort: skip
from oauth2_provider.models import AccessToken, Application, RefreshToken  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")


def test_a_client_registers_its_user_agrees_and_it_gets_a_token_for_this_mount() -> None:
    client = client_of("ann")
    page = client.question()
    assert page.status_code == 200
    told = parameters_of(client.answer(page))
    assert (told["state"], told["iss"]) == ("the-state", SITE)
    tokens: Any = client.exchange(told["code"]).json()  # type: ignore[attr-defined]
    assert tokens["token_type"] == "Bearer"
    assert tokens["scope"] == "notes:read"
    assert tokens["expires_in"] == 3600
    row = AccessToken.objects.get(application__client_id=client.client_id, user__isnull=False)
    assert (row.user, row.resource, row.token) == (in_django.user("ann"), [RESOURCE], "")
    refreshed: Any = client.refresh(tokens["refresh_token"])
    assert refreshed.status_code == 200
    assert refreshed.json()["refresh_token"] != tokens["refresh_token"]
    assert AccessToken.objects.get(application__client_id=client.client_id, user__isnull=False).resource == [RESOURCE]


def test_the_page_names_the_client_its_host_the_user_and_each_scope_in_words() -> None:
    client = client_of("ann", scope="notes:read notes:write")
    page = client.question().content.decode()
    for told in ("Notes client", "client.example", "ann", RESOURCE, "Read your notes", "Change and delete your notes"):
        assert told in page
    assert "The app chose its name itself" in page
    assert "notes:write</li>" not in page


def test_the_page_says_that_an_answer_goes_to_a_program_on_the_users_machine() -> None:
    client = client_of("ann", redirect_uri="http://127.0.0.1:4711/callback")
    page = client.question().content.decode()
    assert "127.0.0.1:4711 (a program on this device)" in page


def test_a_name_that_would_rearrange_the_page_is_shown_as_text_in_one_line() -> None:
    client = OAuthClient(browser_of("ann"))
    client.register(client_name="<b>evil</b>\n\u202egpj.exe" + "x" * 200)
    page = client.question().content.decode()
    assert "&lt;b&gt;evil&lt;/b&gt;gpj.exe" in page
    assert "\u202e" not in page
    assert "x" * 81 not in page


def test_who_is_not_logged_in_logs_in_first_and_comes_back() -> None:
    client = OAuthClient(Browser())
    client.register()
    sent: Any = client.question()
    assert sent.status_code == 302
    target = urlsplit(sent["Location"])
    assert target.path == "/login/"
    assert "next=/oauth/authorize/%3F" in target.query


@override_settings(LOGIN_URL="/accounts/nowhere/")
def test_without_a_login_page_the_admins_is_used() -> None:
    client = OAuthClient(Browser())
    client.register()
    assert urlsplit(client.question()["Location"]).path == "/admin/login/"


def test_a_user_who_says_no_is_sent_back_with_the_error_and_the_issuer() -> None:
    client = client_of("ann")
    told = parameters_of(client.answer(client.question(), allow=False))
    assert told == {"error": "access_denied", "state": "the-state", "iss": SITE}


def test_a_user_may_choose_another_account() -> None:
    client = client_of("ann")
    page = client.question().content.decode()
    form = page.split("<form")[2]
    assert 'action="/oauth/switch-account/"' in form
    csrf = client.browser.cookies["csrftoken"].value
    back = "/oauth/authorize/?client_id=x"
    sent: Any = client.browser.post("/oauth/switch-account/", {"csrfmiddlewaretoken": csrf, "next": back})
    assert sent["Location"] == "/login/?next=%2Foauth%2Fauthorize%2F%3Fclient_id%3Dx"
    assert "_auth_user_id" not in client.browser.session
    sent = browser_of("ann").post("/oauth/switch-account/", {"next": "https://evil.example/"})
    assert sent.status_code == 403  # without the token of the form


def test_the_page_asks_each_time_whatever_the_client_says() -> None:
    client = client_of("ann")
    client.tokens()
    for changes in ({}, {"approval_prompt": "auto"}):
        page = client.question(**changes)
        assert page.status_code == 200
        assert b"Allow" in page.content


# Requests that are refused


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no resource": ({"resource": None}, "invalid_target"),
    "two resources": ({"resource": [RESOURCE, f"{SITE}/other"]}, "invalid_target"),
    "a resource of another site": ({"resource": "https://evil.example/mcp"}, "invalid_target"),
    "a resource that is no URL": ({"resource": "mcp"}, "invalid_target"),
    "a broken resource": ({"resource": "http://[::1/mcp"}, "invalid_target"),
    "no challenge": ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    "an unknown scope": ({"scope": "notes:read admin"}, "invalid_scope"),
    "the implicit grant": ({"response_type": "token"}, "unauthorized_client"),
    "no response type": ({"response_type": None}, "invalid_request"),
}


@pytest.mark.parametrize(("changes", "error"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_cannot_lead_to_a_useful_token_is_refused_at_once(changes: dict[str, Any], error: str) -> None:
    told = parameters_of(client_of("ann").question(**changes))
    assert told["error"] == error
    assert told["iss"] == SITE
    assert "code" not in told


FATAL: dict[str, dict[str, Any]] = {
    "an unknown client": {"client_id": "unknown"},
    "no client": {"client_id": None},
    "another host": {"redirect_uri": "https://evil.example/callback"},
    "another path": {"redirect_uri": f"{REDIRECT}/more"},
    "another query": {"redirect_uri": f"{REDIRECT}?more=1"},
    "a fragment": {"redirect_uri": f"{REDIRECT}#more"},
    "another scheme": {"redirect_uri": "http://client.example/callback"},
    "a user in the URL": {"redirect_uri": "https://evil@client.example/callback"},
}


@pytest.mark.parametrize("changes", FATAL.values(), ids=FATAL)
def test_a_redirect_elsewhere_is_not_followed(changes: dict[str, Any]) -> None:
    response = client_of("ann").question(**changes)
    assert response.status_code == 400
    assert "Location" not in response
    assert b"This request cannot be answered" in response.content


def test_a_client_that_registered_a_host_without_tls_gets_no_code() -> None:
    client = client_of("ann", redirect_uri="http://client.example/callback")
    assert client.question().status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_desktop_client_may_listen_on_any_port_of_the_users_machine(host: str) -> None:
    client = client_of("ann", redirect_uri=f"http://{host}/callback")
    client.redirect_uri = f"http://{host}:54321/callback"
    assert client.tokens()["access_token"]


def test_a_client_with_a_scheme_of_its_own_is_sent_back() -> None:
    client = client_of("ann", redirect_uri="cursor://anysphere.cursor-mcp/oauth/callback")
    assert client.answer(client.question())["Location"].startswith("cursor://anysphere.cursor-mcp/oauth/callback?code=")


def test_nothing_is_left_of_a_user_who_said_no() -> None:
    client = client_of("ann")
    client.answer(client.question(), allow=False)
    application = Application.objects.get(client_id=client.client_id)
    assert not AccessToken.objects.filter(application=application, user__isnull=False).exists()
    assert not RefreshToken.objects.filter(application=application).exists()
