"""Which tokens a mount accepts, what that costs, and what a tool knows of the caller."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support import in_django
from tests.support.oauth import SITE, Browser, OAuthClient, ask, browser_of, client_of, told

from django.core.exceptions import ImproperlyConfigured  # isort: skip - after Django is set up
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections  # isort: skip
from django.test import override_settings  # isort: skip
from django.test.utils import CaptureQueriesContext  # isort: skip
from django.utils import timezone  # isort: skip
from oauth2_provider.models import AccessToken, Application  # isort: skip

from mcp_serving.oauth import OAuth  # isort: skip
from mcp_serving.oauth.models import ConnectedApp  # isort: skip
from mcp_serving.tokens.models import Token  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")


def challenge(response: Any) -> str:
    return str(response.headers["www-authenticate"])


def test_a_tool_knows_the_user_who_signed_in_and_the_client() -> None:
    client = client_of("ann")
    token = client.tokens()["access_token"]
    assert told(ask(token)) == f"ann through {client.client_id}"


def test_a_personal_token_a_login_and_a_sign_in_work_on_one_mount() -> None:
    _, personal = Token.objects.issue(in_django.user("bob"), expires=None)
    assert told(ask(personal)).startswith("bob through mcp_")
    cookie = browser_of("clerk").cookies["sessionid"].value
    assert told(ask(None, Cookie=f"sessionid={cookie}")) == "clerk through nothing"
    assert told(ask(client_of("ann").tokens()["access_token"])).startswith("ann through")
    refused = ask(None)
    assert refused.status_code == 401
    assert challenge(refused) == (
        f'Bearer resource_metadata="{SITE}/.well-known/oauth-protected-resource/mcp", scope="notes:read notes:write"'
    )


def test_each_mount_has_its_document_and_its_scopes() -> None:
    assert 'scope="notes:read"' in challenge(ask(None, "/reading"))
    for mount in ("mcp", "reading"):
        document = asgi_get(f"/.well-known/oauth-protected-resource/{mount}")
        assert document == {
            "resource": f"{SITE}/{mount}",
            "authorization_servers": [SITE],
            "scopes_supported": ["notes:read", "notes:write"],  # what some of its tools need
            "bearer_methods_supported": ["header"],
        }


def asgi_get(path: str) -> Any:
    import anyio
    import httpx2

    from tests.project.oauth_asgi import application

    async def work() -> Any:
        transport = httpx2.ASGITransport(app=application)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url=SITE) as client:
            return (await client.get(path)).json()

    return anyio.run(work)


def test_a_token_for_one_mount_is_refused_by_the_other() -> None:
    token = client_of("ann").tokens()["access_token"]
    assert ask(token, "/reading").status_code == 401
    token = client_of("ann", resource=f"{SITE}/reading").tokens()["access_token"]
    assert ask(token, "/mcp").status_code == 401
    assert told(ask(token, "/reading")).startswith("ann through")


def test_a_token_without_the_scope_of_the_mount_gets_403_with_the_scope() -> None:
    token = client_of("ann", resource=f"{SITE}/reading", scope="notes:write").tokens()["access_token"]
    refused = ask(token, "/reading")
    assert refused.status_code == 403
    assert challenge(refused).startswith('Bearer error="insufficient_scope"')
    assert 'scope="notes:write notes:read"' in challenge(refused)


def change_user(**fields: Any) -> None:
    in_django.user("ann").__class__.objects.filter(username="ann").update(**fields)


@pytest.fixture
def ann_again() -> Any:
    yield
    change_user(is_active=True)


def test_a_token_of_a_user_who_is_deactivated_is_refused_from_the_next_request_on(ann_again: None) -> None:
    client = client_of("ann")
    tokens = client.tokens()
    assert ask(tokens["access_token"]).status_code == 200
    change_user(is_active=False)
    assert ask(tokens["access_token"]).status_code == 401
    assert client.refresh(tokens["refresh_token"]).json()["error"] == "invalid_grant"  # type: ignore[attr-defined]


def test_a_code_of_a_user_who_is_deactivated_is_refused(ann_again: None) -> None:
    client = client_of("ann")
    code = client.code()
    change_user(is_active=False)
    assert client.exchange(code).json()["error"] == "invalid_grant"  # type: ignore[attr-defined]


def test_an_expired_token_is_refused() -> None:
    token = client_of("ann").tokens()["access_token"]
    AccessToken.objects.filter(user__isnull=False).update(expires=timezone.now() - timedelta(seconds=1))
    assert ask(token).status_code == 401


def test_a_token_that_its_client_revokes_is_refused_from_the_next_request_on() -> None:
    client = client_of("ann")
    tokens = client.tokens()
    given = {"token": tokens["refresh_token"], "client_id": client.client_id}
    assert Browser().post("/oauth/revoke/", given).status_code == 200
    assert ask(tokens["access_token"]).status_code == 401


def test_a_token_that_was_issued_for_no_resource_or_for_several_is_refused() -> None:
    token = client_of("ann").tokens()["access_token"]
    for resources in ([], [f"{SITE}/mcp", f"{SITE}/reading"]):
        AccessToken.objects.filter(user__isnull=False).update(resource=resources)
        assert ask(token).status_code == 401


def test_a_token_without_a_user_is_refused() -> None:
    client = client_of("ann")
    token = client.tokens()["access_token"]
    AccessToken.objects.filter(application__client_id=client.client_id).update(user=None)
    assert ask(token).status_code == 401
    registration = OAuthClient(Browser()).register()["registration_access_token"]
    assert ask(registration).status_code == 401


def test_the_token_itself_is_not_in_the_database() -> None:
    tokens = client_of("ann").tokens()
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        for table in ("oauth2_provider_accesstoken", "oauth2_provider_refreshtoken"):
            cursor.execute(f"SELECT * FROM {table}")
            rows = repr(cursor.fetchall())
            assert tokens["access_token"] not in rows
            assert tokens["refresh_token"] not in rows


def test_a_call_costs_one_query_and_once_a_minute_one_write() -> None:
    token = client_of("ann").tokens()["access_token"]
    verifier = OAuth()
    queries = []
    for _ in range(3):
        with CaptureQueriesContext(connections[DEFAULT_DB_ALIAS]) as captured:
            found = verifier.look_up(token)
        assert found is not None
        assert found.subject == str(in_django.user("ann").pk)
        queries.append([query["sql"].split()[0] for query in captured.captured_queries])
    assert queries == [["SELECT", "UPDATE"], ["SELECT"], ["SELECT"]]


def test_lookups_run_in_threads_of_the_verifier() -> None:
    token = client_of("ann").tokens()["access_token"]
    names = []

    class Noting(OAuth):
        def look_up(self, text: str) -> Any:
            import threading

            names.append(threading.current_thread().name)
            return super().look_up(text)

    found = asyncio.run(Noting().verify_token(token))
    assert found is not None
    assert names == ["mcp-serving-Noting_0"]
    assert token not in repr(found)


def test_a_database_that_cannot_note_the_use_costs_nothing_but_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = client_of("ann").tokens()["access_token"]

    def fails(*_: Any, **__: Any) -> None:
        raise OperationalError("read-only")

    monkeypatch.setattr("mcp_serving.oauth.models.ConnectedAppQuerySet.update", fails)
    assert OAuth().look_up(token) is not None
    assert "could not be noted: read-only" in caplog.text


@override_settings(OAUTH2_PROVIDER={"OIDC_ISS_ENDPOINT": "https://login.example"})
def test_the_issuer_may_be_another_site() -> None:
    assert OAuth().authorization_server(SITE) == "https://login.example"


def test_without_its_apps_the_verifier_says_what_is_missing() -> None:
    for missing in ("oauth2_provider", "mcp_serving.oauth"):
        from django.conf import settings

        apps = [each for each in settings.INSTALLED_APPS if each != missing]
        with override_settings(INSTALLED_APPS=apps), pytest.raises(ImproperlyConfigured, match=f"needs '{missing}' in"):
            OAuth()


def test_a_client_that_the_project_has_made_unusable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    token = client_of("ann").tokens()["access_token"]
    monkeypatch.setattr(Application, "is_usable", lambda self, request: False)
    assert OAuth().look_up(token) is None


def test_a_reused_refresh_token_ends_the_whole_family() -> None:
    client = client_of("ann")
    first = client.tokens()
    second: Any = client.refresh(first["refresh_token"]).json()  # type: ignore[attr-defined]
    assert ask(first["access_token"]).status_code == 401
    assert ask(second["access_token"]).status_code == 200
    assert client.refresh(first["refresh_token"]).json()["error"] == "invalid_grant"  # type: ignore[attr-defined]
    assert ask(second["access_token"]).status_code == 401
    assert client.refresh(second["refresh_token"]).json()["error"] == "invalid_grant"  # type: ignore[attr-defined]
    assert not ConnectedApp.objects.filter(application__client_id=client.client_id).with_tokens().exists()
