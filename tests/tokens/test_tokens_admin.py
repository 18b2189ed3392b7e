"""Tokens in the admin, through Django's test client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support import in_django
from tests.tokens.test_tokens import TEXT, issue

from django.contrib.admin.models import LogEntry  # isort: skip - after Django is set up
from django.contrib.auth.models import Permission, User  # isort: skip
from django.contrib.sessions.models import Session  # isort: skip
from django.test import Client  # isort: skip
from django.utils import timezone  # isort: skip

from mcp_serving.tokens.models import Token  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")

ADD = "/admin/mcp_tokens/token/add/"
LIST = "/admin/mcp_tokens/token/"


def staff(name: str, *permissions: str) -> Client:
    """The client of a member of staff who may do just this."""
    user, _ = User.objects.get_or_create(username=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return client_of(user)


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def root() -> Client:
    User.objects.filter(username="root").update(is_staff=True)
    return client_of(in_django.user("root"))


def form(whom: str = "ann", /, **changes: Any) -> dict[str, Any]:
    tomorrow = timezone.localtime(timezone.now() + timedelta(days=1))
    return {
        "user": in_django.user(whom).pk,
        "name": "laptop",
        "scope": "read write",
        "expires_0": f"{tomorrow:%Y-%m-%d}",
        "expires_1": f"{tomorrow:%H:%M:%S}",
        **changes,
    }


def text_in(response: Any) -> str:
    texts = set(TEXT.findall(response.content.decode()))
    assert len(texts) == 1
    text: str = texts.pop()
    return text


def test_a_new_token_is_shown_once_and_works(root: Client) -> None:
    response = root.post(ADD, form())
    text = text_in(response)
    token = Token.objects.verify(text)
    assert token is not None
    assert (token.user.get_username(), token.name, token.scopes) == ("ann", "laptop", ["read", "write"])
    assert token.expires is not None
    for address in (LIST, f"{LIST}{token.pk}/change/", f"{LIST}{token.pk}/history/", f"{LIST}{token.pk}/delete/", ADD):
        page = root.get(address).content.decode()
        assert text[17:] not in page
        assert token.digest not in page


def test_the_text_is_in_one_response_and_not_in_cookies_sessions_or_the_admin_log(root: Client) -> None:
    response = root.post(ADD, form())
    text = text_in(response)
    assert response.status_code == 200
    assert "no-store" in response.headers["Cache-Control"]
    secret = text[17:]
    assert secret not in str([*response.headers.items(), response.cookies, root.cookies])
    assert secret not in str([session.get_decoded() for session in Session.objects.all()])
    entry = LogEntry.objects.latest("pk")
    assert (entry.object_repr, entry.get_change_message()) == (f"laptop ({text[:16]})", "Added.")
    assert secret not in str(list(LogEntry.objects.values()))


@pytest.mark.parametrize("button", ["_save", "_continue", "_addanother", "_popup"])
def test_the_token_is_shown_after_every_button_of_the_form(button: str, root: Client) -> None:
    assert Token.objects.verify(text_in(root.post(ADD, form(**{button: "1"})))) is not None


def test_the_form_suggests_the_logged_in_user_and_90_days_and_has_only_a_save_button(root: Client) -> None:
    response = root.get(ADD)
    initial = response.context_data["adminform"].form.initial
    assert initial["user"] == in_django.user("root").pk
    assert abs(initial["expires"] - timezone.now() - timedelta(days=90)) < timedelta(seconds=60)
    page = response.content.decode()
    assert 'name="_save"' in page
    assert "_addanother" not in page
    assert "_continue" not in page
    assert "digest" not in page


def test_a_token_without_an_expiry_never_expires(root: Client) -> None:
    token = Token.objects.verify(text_in(root.post(ADD, form(expires_0="", expires_1=""))))
    assert token is not None
    assert token.expires is None


@pytest.mark.parametrize(
    ("whom", "changes", "message"),
    [
        ("ann", {"expires_0": "2001-01-01"}, "has passed"),
        ("ann", {"scope": "café"}, "is not a scope"),
        ("ann", {"user": ""}, "This field is required"),
        ("gone", {}, "is not active"),
    ],
)
def test_an_invalid_form_shows_the_error_and_issues_no_token(
    whom: str, changes: dict[str, Any], message: str, root: Client
) -> None:
    before = Token.objects.count()
    response = root.post(ADD, form(whom, **changes))
    assert message in response.content.decode()
    assert not TEXT.search(response.content.decode())
    assert Token.objects.count() == before


def test_the_list_shows_the_state_and_the_last_use_and_finds_by_token_and_user(root: Client) -> None:
    Token.objects.all().delete()
    tokens = {state: issue(name=state, scopes=["read"])[0] for state in ("active", "expired", "revoked", "other")}
    Token.objects.filter(name="active").update(last_used=timezone.now())
    Token.objects.filter(name="expired").update(expires=timezone.now())
    Token.objects.filter(name="revoked").revoke()
    Token.objects.filter(name="other").update(user=in_django.user("gone"))

    def states(**query: str) -> dict[str, str]:
        found = root.get(LIST, query).context_data["cl"].result_list
        return {token.prefix: str(token.state.label) for token in found}

    assert states() == {
        tokens["active"].prefix: "active",
        tokens["expired"].prefix: "expired",
        tokens["revoked"].prefix: "revoked",
        tokens["other"].prefix: "user inactive",
    }
    assert states(q=tokens["active"].prefix) == {tokens["active"].prefix: "active"}
    assert states(q="gone") == {tokens["other"].prefix: "user inactive"}
    assert states(revoked__isempty="0") == {tokens["revoked"].prefix: "revoked"}
    page = root.get(LIST).content.decode()
    assert all(f'field-state_label">{state}' in page for state in ("active", "expired", "revoked", "user inactive"))


def test_the_action_revokes_tokens_and_is_logged(root: Client) -> None:
    tokens = [issue(), issue()]
    before = LogEntry.objects.count()
    chosen = {"action": "revoke", "_selected_action": [token.pk for token, _ in tokens]}
    response = root.post(LIST, chosen, follow=True)
    assert "Revoked tokens: 2." in response.content.decode()
    assert [Token.objects.verify(text) for _, text in tokens] == [None, None]
    assert {entry.get_change_message() for entry in LogEntry.objects.order_by("-pk")[:2]} == {"Revoked."}
    first = Token.objects.get(pk=tokens[0][0].pk).revoked
    assert "Revoked tokens: 0." in root.post(LIST, chosen, follow=True).content.decode()
    assert Token.objects.get(pk=tokens[0][0].pk).revoked == first
    assert LogEntry.objects.count() == before + 2


def test_only_the_name_of_an_issued_token_can_be_changed(root: Client) -> None:
    token, text = issue(scopes=["read"])
    before = Token.objects.values().get(pk=token.pk)
    everything = {"key_id": "x", "digest": "x", "revoked_0": "", "created_0": "2001-01-01", "created_1": "00:00"}
    response = root.post(f"{LIST}{token.pk}/change/", {**form("root", name="desk", scope="all"), **everything})
    assert response.status_code == 302
    assert Token.objects.values().get(pk=token.pk) == {**before, "name": "desk"}
    assert Token.objects.verify(text) is not None


# Who may


def test_the_permissions_of_the_admin_apply() -> None:
    token, text = issue()
    revoke = {"action": "revoke", "_selected_action": [token.pk]}
    nobody = staff("nobody")
    assert [nobody.get(address).status_code for address in (LIST, ADD)] == [403, 403]
    viewer = staff("viewer", "view_token")
    assert viewer.get(LIST).status_code == 200
    assert viewer.get(f"{LIST}{token.pk}/change/").status_code == 200
    assert viewer.post(f"{LIST}{token.pk}/change/", form()).status_code == 403
    assert viewer.post(ADD, form("viewer")).status_code == 403
    assert "Revoke the selected" not in viewer.get(LIST).content.decode()
    viewer.post(LIST, revoke)
    assert Token.objects.verify(text) is not None
    staff("changer", "view_token", "change_token").post(LIST, revoke)
    assert Token.objects.verify(text) is None


def test_staff_who_may_not_change_users_issue_tokens_only_for_themselves() -> None:
    adder = staff("adder", "add_token")
    before = Token.objects.count()
    page = adder.post(ADD, form("root")).content.decode()
    assert "not one of the available choices" in page
    assert ">root<" not in page
    assert Token.objects.count() == before
    token = Token.objects.verify(text_in(adder.post(ADD, form("adder"))))
    assert token is not None
    assert token.user.get_username() == "adder"
    manager = staff("manager", "add_token", "change_user")
    assert Token.objects.verify(text_in(manager.post(ADD, form("ann")))) is not None


def test_the_form_searches_users_instead_of_listing_all(root: Client) -> None:
    page = root.get(ADD).content.decode()
    assert "admin-autocomplete" in page
    assert ">bob<" not in page
