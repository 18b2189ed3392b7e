"""Signing in at several workers that share a database and a cache: each step may reach another worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import in_django
from tests.support.harness import DEADLINE, call, shared_cache
from tests.support.oauth import REDIRECT, RESOURCE, browser_of, challenge_of, hidden_fields
from tests.support.raw_http import headers_of
from tests.support.workers import started

pytestmark = [pytest.mark.usefixtures("users_of_its_own"), pytest.mark.process]

VERIFIER = "v" * 50


class Worker:
    """One worker, as the proxy in front of all of them reaches it: by the name of the site."""

    def __init__(self, address: str, cookies: dict[str, str]) -> None:
        headers = {"Host": "testserver", "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        self._http = httpx2.Client(base_url=address, headers=headers, timeout=DEADLINE)

    def get(self, path: str, **query: str) -> httpx2.Response:
        return self._http.get(path, params=query)

    def post(self, path: str, **fields: str) -> httpx2.Response:
        return self._http.post(path, data=fields)

    def register(self) -> httpx2.Response:
        metadata = {"client_name": "A", "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"}
        return self._http.post("/oauth/register/", json=metadata)

    def code(self, client_id: str) -> str:
        """The code after the consent, whose page comes from this worker."""
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": REDIRECT,
            "scope": "notes:read",
            "code_challenge": challenge_of(VERIFIER),
            "code_challenge_method": "S256",
            "resource": RESOURCE,
        }
        page = self.get("/oauth/authorize/", **query)
        assert page.status_code == 200, page.text
        agreed = self.post(str(page.request.url), **hidden_fields(page.text), allow="on")
        return str(httpx2.URL(agreed.headers["location"]).params["code"])

    def token(self, client_id: str, **fields: str) -> httpx2.Response:
        return self.post("/oauth/token/", client_id=client_id, **fields)

    def exchange(self, client_id: str, code: str) -> httpx2.Response:
        grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT}
        return self.token(client_id, **grant, code_verifier=VERIFIER)

    def refresh(self, client_id: str, tokens: Any) -> httpx2.Response:
        return self.token(client_id, grant_type="refresh_token", refresh_token=tokens["refresh_token"])

    def disconnect(self) -> None:
        """Click "Disconnect" on the page of connected apps."""
        page = self.get("/oauth/connected-apps/").text
        action = page.partition('<form method="post" action="')[2].partition('"')[0]
        assert self.post(action, **hidden_fields(page)).status_code == 302

    def status_of_call(self, tokens: Any) -> int:
        message = call(1, "who", modern=True)
        headers = {**headers_of(message), "Authorization": f"Bearer {tokens['access_token']}"}
        return self._http.post("/mcp", json=message, headers=headers).status_code

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def workers(users: None, tmp_path: Path) -> Iterator[list[Worker]]:
    env = {
        **in_django.ENVIRONMENT,
        **shared_cache(tmp_path / "cache"),
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth",
        "TEST_OAUTH": '{"DCR_REGISTRATIONS_PER_HOUR": 3}',
    }
    browser = browser_of("ann")
    cookies = {"sessionid": browser.cookies["sessionid"].value, "csrftoken": "c" * 32}
    with started("uvicorn", 2, None, "tests.project.oauth_asgi", env=env) as processes:
        both = [Worker(each.address, cookies) for each in processes]
        yield both
        for worker in both:
            worker.close()
    assert not any("Traceback" in each.process.errors for each in processes)


def test_each_step_of_signing_in_may_reach_another_worker(workers: list[Worker]) -> None:
    one, other = workers
    client_id = one.register().json()["client_id"]
    code = other.code(client_id)
    first = one.exchange(client_id, code).json()
    assert [each.status_of_call(first) for each in workers] == [200, 200]
    second = other.refresh(client_id, first).json()
    assert [each.status_of_call(second) for each in workers] == [200, 200]
    assert [each.status_of_call(first) for each in workers] == [401, 401]

    other.disconnect()
    assert [each.status_of_call(second) for each in workers] == [401, 401]
    assert [each.refresh(client_id, second).status_code for each in workers] == [400, 400]


def test_an_attack_that_goes_round_the_workers_fails_like_one_at_a_single_worker(workers: list[Worker]) -> None:
    one, other = workers
    client_id = one.register().json()["client_id"]
    code = one.code(client_id)
    tokens = other.exchange(client_id, code).json()
    assert one.exchange(client_id, code).json()["error"] == "invalid_grant"  # a code used twice
    assert [each.status_of_call(tokens) for each in workers] == [401, 401]

    first = one.exchange(client_id, one.code(client_id)).json()
    second = one.refresh(client_id, first).json()
    assert other.refresh(client_id, first).json()["error"] == "invalid_grant"  # a refresh token used twice
    assert [each.status_of_call(second) for each in workers] == [401, 401]

    statuses = [worker.register().status_code for worker in (other, one, other, one)]
    assert statuses == [201, 201, 429, 429]  # all workers count together
