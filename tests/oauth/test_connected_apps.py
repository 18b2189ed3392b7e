"""The page of connected apps, disconnecting, and the same for staff in the admin."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from tests.support import in_django
from tests.support.oauth import Browser, ask, browser_of, client_of

from django.contrib.auth.models import Permission, User  # isort: skip - after Django is set up
from django.test import override_settings  # isort: skip
from django.utils import translation  # isort: skip
from django.utils import timezone  # isort: skip
from oauth2_provider.models import AccessToken, RefreshToken  # isort: skip

from mcp_serving.oauth.models import ConnectedApp  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")

PAGE = "/oauth/connected-apps/"
ADMIN = "/admin/mcp_oauth/connectedapp/"


def page_of(browser: Browser) -> str:
    return str(browser.get(PAGE).content.decode())


def disconnect(browser: Browser) -> Any:
    page = page_of(browser)
    action = re.search(r'action="([^"]+/disconnect/)"', page)
    csrf = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert action
    assert csrf
    return browser.post(action[1], {"csrfmiddlewaretoken": csrf[1]}, follow=True)


def test_a_user_sees_what_is_connected_since_when_and_when_it_was_last_used() -> None:
    client = client_of("ann", scope="notes:read notes:write")
    tokens = client.tokens()
    page = page_of(client.browser)
    for shown in ("Notes client", "client.example", "Read your notes", "Change and delete your notes", "not yet"):
        assert shown in page
    assert ask(tokens["access_token"]).status_code == 200
    app = ConnectedApp.objects.get()
    assert app.last_used is not None
    assert app.connected < app.last_used
    assert "not yet" not in page_of(client.browser)


def test_a_user_sees_nothing_of_others_and_cannot_disconnect_their_apps() -> None:
    client = client_of("ann")
    client.tokens()
    bob = browser_of("bob")
    assert "No app is connected." in page_of(bob)
    csrf = client_of("bob").question().content.decode().split('csrfmiddlewaretoken" value="')[1].split('"')[0]
    app = ConnectedApp.objects.get(user=in_django.user("ann"))
    bob.cookies["csrftoken"] = csrf
    refused = bob.post(f"{PAGE}{app.pk}/disconnect/", {"csrfmiddlewaretoken": csrf})
    assert refused.status_code == 404
    assert ConnectedApp.objects.filter(pk=app.pk).exists()


def test_who_is_not_logged_in_logs_in_first() -> None:
    assert Browser().get(PAGE)["Location"] == f"/login/?next={PAGE}"


def test_disconnecting_ends_all_that_the_app_may_do() -> None:
    client = client_of("ann")
    tokens = client.tokens()
    code = client.code()
    assert ask(tokens["access_token"]).status_code == 200
    page = disconnect(client.browser).content.decode()
    assert "Notes client is disconnected." in page
    assert "No app is connected." in page
    assert ask(tokens["access_token"]).status_code == 401
    assert client.refresh(tokens["refresh_token"]).status_code == 400
    assert client.exchange(code).status_code == 400
    assert not AccessToken.objects.filter(user=in_django.user("ann")).exists()
    assert RefreshToken.objects.filter(user=in_django.user("ann"), revoked=None).count() == 0


def test_one_of_two_apps_is_disconnected_and_the_same_app_of_another_user_stays() -> None:
    first, second = client_of("ann"), client_of("ann")
    kept = second.tokens()["access_token"]
    bobs = client_of("bob")
    bobs.client_id = first.client_id
    of_bob = bobs.tokens()["access_token"]
    ended = first.tokens()["access_token"]
    ConnectedApp.objects.filter(user=in_django.user("ann"), application__client_id=first.client_id).disconnect()
    assert [ask(token).status_code for token in (ended, kept, of_bob)] == [401, 200, 200]


def test_an_app_that_connects_again_is_a_new_connection() -> None:
    client = client_of("ann")
    client.tokens()
    ConnectedApp.objects.update(connected=timezone.now() - timedelta(days=9), last_used=timezone.now())
    client.tokens()
    assert ConnectedApp.objects.get().connected < timezone.now() - timedelta(days=8)
    disconnect(client.browser)
    assert client.exchange(client.code()).status_code == 200
    app = ConnectedApp.objects.get()
    assert app.connected > timezone.now() - timedelta(days=1)
    assert app.last_used is None


def test_an_app_whose_tokens_have_ended_is_not_shown() -> None:
    client = client_of("ann")
    client.tokens()
    AccessToken.objects.filter(user__isnull=False).update(expires=timezone.now() - timedelta(days=1))
    assert "Notes client" in page_of(client.browser)  # it can still refresh
    AccessToken.objects.filter(user__isnull=False).update(expires=timezone.now() - timedelta(days=31))
    assert "No app is connected." in page_of(client.browser)


def test_the_pages_can_be_translated_and_read_from_right_to_left() -> None:
    client = client_of("ann")
    with override_settings(LANGUAGE_CODE="ar"), translation.override("ar"):
        for page in (page_of(client.browser), client.question().content.decode()):
            assert '<html lang="ar" dir="rtl">' in page


def test_a_project_overrides_a_page_with_a_template_of_the_same_name(tmp_path: Any) -> None:
    from django.conf import settings

    (tmp_path / "mcp_serving" / "oauth").mkdir(parents=True)
    (tmp_path / "mcp_serving" / "oauth" / "base.html").write_text("<p>Ours</p>{% block content %}{% endblock %}")
    client = client_of("ann")
    with override_settings(TEMPLATES=[{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]):
        for page in (page_of(client.browser), client.question().content.decode()):
            assert page.startswith("<p>Ours</p>")


# Staff


def staff(*permissions: str) -> Browser:
    user, _ = User.objects.get_or_create(username="staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Browser()
    browser.force_login(user)
    return browser


def test_staff_see_the_apps_of_all_users_and_disconnect_them() -> None:
    token = client_of("ann").tokens()["access_token"]
    assert staff().get(ADMIN).status_code == 403
    page = staff("view_connectedapp").get(ADMIN).content.decode()
    for shown in ("Notes client", "client.example", "ann", "notes:read"):
        assert shown in page
    assert 'value="disconnect"' not in page
    browser = staff("view_connectedapp", "delete_connectedapp")
    chosen = {"action": "disconnect", "_selected_action": [ConnectedApp.objects.get().pk]}
    assert "1 app is disconnected." in browser.post(ADMIN, chosen, follow=True).content.decode()
    assert ask(token).status_code == 401


def test_deleting_a_row_in_the_admin_disconnects_the_app() -> None:
    token = client_of("ann").tokens()["access_token"]
    browser = staff("view_connectedapp", "delete_connectedapp")
    url = f"{ADMIN}{ConnectedApp.objects.get().pk}/delete/"
    assert browser.post(url, {"post": "yes"}).status_code == 302
    assert ask(token).status_code == 401
    assert not ConnectedApp.objects.exists()


def test_nobody_adds_or_changes_a_connection_in_the_admin() -> None:
    client_of("ann").tokens()
    browser = staff("view_connectedapp", "add_connectedapp", "change_connectedapp", "delete_connectedapp")
    assert browser.get(f"{ADMIN}add/").status_code == 403
    page = browser.get(f"{ADMIN}{ConnectedApp.objects.get().pk}/change/").content.decode()
    assert "<select" not in page
    assert 'name="scope"' not in page
