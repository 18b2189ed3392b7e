"""The middleware of docs/cors.md around the handler, by what is sent; test_browser.py is about what a page gets."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from django.test import override_settings
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from mcp_serving.security import hosts
from tests.support import in_django
from tests.support.asgi_servers import DAPHNE, serving
from tests.support.harness import ROOT, Notes, Process, call
from tests.support.raw_http import headers_of, open_session, post

ALLOWED = "https://app.example.com"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,mcp-method,mcp-name,mcp-param-region,mcp-session-id",
}


@contextmanager
def serving_access_servers(server: str, notes: Notes) -> Iterator[tuple[Process, str]]:
    env = {**in_django.ENVIRONMENT, **notes.env, "TEST_DEBUG": "0", "TEST_TRUSTED_ORIGINS": json.dumps([ALLOWED])}
    named = ["--server", "tests.project.access_asgi.server"] if server == "runmcp" else []
    with serving(server, "tests.project.cors_asgi", *named, env=env) as served:
        yield served


@pytest.fixture(scope="module", params=[*DAPHNE, "uvicorn"])
def site(
    request: pytest.FixtureRequest, users: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Process, str]]:
    with serving_access_servers(request.param, Notes(tmp_path_factory.mktemp("site") / "notes")) as served:
        yield served


def preflight(address: str, path: str, origin: str = ALLOWED) -> httpx2.Response:
    return httpx2.options(f"{address}{path}", headers={"Origin": origin, **PREFLIGHT})


@pytest.mark.process
def test_a_preflight_is_answered_before_anybody_asks_who_calls(site: tuple[Process, str]) -> None:
    _, address = site
    for path in ("/public", "/token", "/login", "/login/"):
        allowed = preflight(address, path)
        assert allowed.status_code == 200
        assert allowed.headers["Access-Control-Allow-Origin"] == ALLOWED
        assert allowed.headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
        assert allowed.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
        assert "Origin" in allowed.headers["Vary"]
        assert ("Access-Control-Allow-Credentials" in allowed.headers) is path.startswith("/login")
        other = preflight(address, path, "https://app.example.com.evil.example")
        assert other.status_code == 400
        assert "Access-Control-Allow-Origin" not in other.headers
    assert "Access-Control-Allow-Origin" not in preflight(address, "/quick/").headers


@pytest.mark.process
def test_every_refusal_can_be_read_by_a_page_of_an_allowed_origin(site: tuple[Process, str]) -> None:
    _, address = site
    message = call(1, "who", modern=True)
    refusals = [
        (421, "/public", {"Host": "evil.example"}),
        (401, "/login", {}),
        (401, "/token", {}),
        (403, "/token", {"Authorization": "Bearer ann-scopeless"}),
        (503, "/token", {"Authorization": "Bearer boom-token"}),
    ]
    for status, path, headers in refusals:
        answer = httpx2.post(
            f"{address}{path}", json=message, headers={**headers_of(message), "Origin": ALLOWED, **headers}
        )
        assert answer.status_code == status
        assert answer.headers["Access-Control-Allow-Origin"] == ALLOWED
        assert "WWW-Authenticate, Retry-After" in answer.headers["Access-Control-Expose-Headers"]
        assert "Origin" in answer.headers["Vary"]


@pytest.mark.process
def test_the_document_about_the_resource_has_the_headers_once(site: tuple[Process, str]) -> None:
    _, address = site
    path = "/.well-known/oauth-protected-resource/oauth"
    document = httpx2.get(f"{address}{path}", headers={"Origin": ALLOWED})
    assert document.json()["authorization_servers"]
    assert document.headers.get_list("Access-Control-Allow-Origin") == [ALLOWED]  # the SDK's own say "*"


@pytest.mark.process
def test_a_preflight_gets_through_while_a_call_is_waited_for(users: None, notes: Notes) -> None:
    # The answer to a question of that call may come from a page, whose browser asks first.
    with serving_access_servers("runmcp", notes) as (process, address):
        session = open_session(address, "/public")
        in_flight = post(address, "/public", call(1, "slow"), session)
        process.signal(signal.SIGTERM)
        process.wait_for("Shutting down: received")
        assert preflight(address, "/public").headers["Access-Control-Allow-Origin"] == ALLOWED
        assert httpx2.options(f"{address}/public").status_code == 503
        with notes.path.open("a") as file:
            file.write("go\n")
        assert b"for AnonymousUser" in in_flight.read()
        assert process.wait() == 0


# What the page says of wildcards

WILD = "https://*.example.com"


@override_settings(ALLOWED_HOSTS=["mcp.example.net"], CSRF_TRUSTED_ORIGINS=[WILD])
@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://example.com", True),
        ("https://app.example.com", True),
        ("https://a.b-c.example.com", True),
        ("https://badexample.com", False),
        ("https://examplescom", False),
        ("https://app.example.com.evil.example", False),
        ("http://app.example.com", False),
        ("https://app.example.com:8443", False),
        ("null", False),
    ],
)
def test_the_expression_on_the_page_allows_what_the_wildcard_in_the_settings_does(origin: str, allowed: bool) -> None:
    page = (ROOT / "docs" / "cors.md").read_text()
    assert f'"{WILD}"' in page
    (expression,) = re.findall(r'allow_origin_regex=r"(.*)"', page)
    scope = {"scheme": "https", "headers": [(b"host", b"mcp.example.net"), (b"origin", origin.encode())]}
    assert (hosts.refusal(scope) is None) is allowed
    assert CORSMiddleware(no_app, allow_origin_regex=expression).is_allowed_origin(origin) is allowed


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nothing is sent to it")
