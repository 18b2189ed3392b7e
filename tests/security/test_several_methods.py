"""Several authentication methods on one mount, and how clients find the authorization server of a mount."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import django
import httpx2
import pytest
from channels.routing import URLRouter
from django.test import override_settings
from django.urls import path
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer

from mcp_serving import MCPServer as OurServer
from mcp_serving import StreamableHTTPHandler, get_user
from mcp_serving.asgi import lifecycle
from tests.support.harness import call
from tests.support.raw_http import headers_of

django.setup()

URL = "http://localhost/mcp"


class User:
    is_authenticated = is_active = True
    is_anonymous = False

    def __init__(self, name: str) -> None:
        self.pk = self.name = name

    def __str__(self) -> str:
        return self.name


class Personal:
    """Accepts tokens that begin with "personal-"."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if not token.startswith("personal-"):
            return None
        return AccessToken(token=token, client_id="c", scopes=["read"], subject=token.removeprefix("personal-"))

    def user_for_token(self, token: AccessToken) -> User:
        return User(f"{token.subject} by a personal token")


class SignIn:
    """Accepts JSON objects with the fields of an access token."""

    def __init__(self, issuer: str = "", scopes: tuple[str, ...] = ()) -> None:
        self.issuer = issuer
        self.scopes = scopes

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, **json.loads(token)) if token.startswith("{") else None

    def user_for_token(self, token: AccessToken) -> User:
        return User(f"{token.subject} by signing in")

    def authorization_server(self, site: str) -> str:
        return self.issuer or site

    def scopes_supported(self) -> tuple[str, ...]:
        return self.scopes


class Broken:
    async def verify_token(self, token: str) -> AccessToken | None:
        raise OSError("no database")


def signed_in(**fields: Any) -> str:
    return json.dumps({"client_id": "c", "scopes": ["read"], "subject": "ann", "resource": URL, **fields})


def server() -> MCPServer:
    made = OurServer("x")

    @made.tool()
    async def who() -> str:
        token = get_access_token()
        return f"{get_user()}, {'no token' if token is None else 'a token'}"

    return made


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield client
        finally:
            await lifecycle.close()


async def ask(client: httpx2.AsyncClient, at: str = "/mcp", token: str | None = None) -> httpx2.Response:
    message = call(1, "who", modern=True)
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await client.post(at, json=message, headers={**headers_of(message), **authorization})


def who(response: httpx2.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["result"]["structuredContent"]["result"])


def challenge(response: httpx2.Response) -> str:
    return str(response.headers["www-authenticate"])


def mounted(*auth: Any, **options: Any) -> URLRouter:
    handler = StreamableHTTPHandler(server(), auth=list(auth), json_response=True, **options)
    return URLRouter(handler.urlpatterns("mcp"))


def test_each_of_several_verifiers_may_accept_a_token_and_brings_its_own_user() -> None:
    async def work() -> None:
        async with serving(mounted(Personal(), SignIn())) as client:
            assert who(await ask(client, token="personal-ann")) == "ann by a personal token, a token"
            assert who(await ask(client, token=signed_in())) == "ann by signing in, a token"
            assert (await ask(client, token="unknown")).status_code == 401
            assert (await ask(client)).status_code == 401

    anyio.run(work)


def test_a_broken_verifier_locks_out_nobody_whom_another_one_knows() -> None:
    async def work() -> None:
        async with serving(mounted(Broken(), Personal())) as client:
            assert who(await ask(client, token="personal-ann")) == "ann by a personal token, a token"
            unknown = await ask(client, token="unknown")
            assert (unknown.status_code, unknown.headers["retry-after"]) == (503, "5")

    anyio.run(work)


@pytest.mark.parametrize("logged_in", [True, False], ids=["logged in", "anonymous"])
def test_a_mount_for_users_who_are_logged_in_takes_tokens_too(logged_in: bool) -> None:
    router = mounted(Personal(), login_required=True)

    async def with_session(scope: Any, receive: Any, send: Any) -> None:
        user = User("bob")
        user.is_authenticated = logged_in
        await router({**scope, "user": user}, receive, send)

    async def work() -> None:
        async with serving(with_session) as client:
            assert who(await ask(client, token="personal-ann")) == "ann by a personal token, a token"
            # A client that shows a token means to use it: the cookie of the same browser does not replace it.
            assert (await ask(client, token="unknown")).status_code == 401
            without = await ask(client)
            if logged_in:
                assert who(without) == "bob, no token"
            else:
                assert without.status_code == 401
                assert challenge(without) == "Bearer"

    anyio.run(work)


def test_a_token_of_one_request_is_unknown_in_the_next_one_of_the_same_task() -> None:
    public = StreamableHTTPHandler(server(), public=True, json_response=True)
    private = StreamableHTTPHandler(server(), auth=Personal(), json_response=True)
    router = URLRouter([*private.urlpatterns("private"), *public.urlpatterns("public")])

    async def work() -> None:
        async with serving(router) as client:
            assert who(await ask(client, "/private", "personal-ann")) == "ann by a personal token, a token"
            assert who(await ask(client, "/public")) == "AnonymousUser, no token"

    anyio.run(work)


# Which token is for this mount

REFUSED = {
    "another mount": {"resource": "http://localhost/other"},
    "another host": {"resource": "http://elsewhere.example/mcp"},
    "another scheme": {"resource": "https://localhost/mcp"},
    "another port": {"resource": "http://localhost:8000/mcp"},
    "below the mount": {"resource": "http://localhost/mcp/more"},
    "above the mount": {"resource": "http://localhost/"},
    "no URL": {"resource": "mcp"},
    "expired": {"expires_at": 1},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_a_token_for_another_resource_or_an_expired_one_is_refused(fields: dict[str, Any]) -> None:
    async def work() -> None:
        async with serving(mounted(SignIn())) as client:
            refused = await ask(client, token=signed_in(**fields))
            assert refused.status_code == 401
            assert 'error="invalid_token"' in challenge(refused)

    anyio.run(work)


@pytest.mark.parametrize("resource", [URL, f"{URL}/", "HTTP://LOCALHOST:80/mcp"])
def test_the_same_url_may_be_written_in_another_way(resource: str) -> None:
    async def work() -> None:
        async with serving(mounted(SignIn())) as client:
            token = signed_in(resource=resource, expires_at=int(time.time()) + 60)
            assert who(await ask(client, token=token)) == "ann by signing in, a token"
            assert who(await ask(client, at="/mcp/", token=token)) == "ann by signing in, a token"

    anyio.run(work)


# Discovery


def test_the_challenge_names_the_document_and_the_scopes_and_the_document_names_the_server() -> None:
    async def work() -> None:
        router = mounted(Personal(), SignIn("https://issuer.example"), required_scopes=["read", "write"])
        async with serving(router) as client:
            url = "http://localhost/.well-known/oauth-protected-resource/mcp"
            refused = await ask(client)
            assert challenge(refused) == f'Bearer resource_metadata="{url}", scope="read write"'
            lacking = await ask(client, token=signed_in())
            assert lacking.status_code == 403
            assert challenge(lacking) == (
                f'Bearer error="insufficient_scope", resource_metadata="{url}", scope="read write"'
            )
            document = await client.get(url, headers={"Origin": "https://elsewhere.example"})
            assert document.headers["access-control-allow-origin"] == "*"
            assert document.json() == {
                "resource": URL,
                "authorization_servers": ["https://issuer.example"],
                "scopes_supported": ["read", "write"],
                "bearer_methods_supported": ["header"],
            }
            preflight = await client.options(
                url,
                headers={
                    "Origin": "https://elsewhere.example",
                    "Access-Control-Request-Method": "GET",
                    "Access-Control-Request-Headers": "mcp-protocol-version",
                },
            )
            assert preflight.status_code == 200

    anyio.run(work)


def test_two_mounts_have_two_documents_also_below_a_prefix_of_the_router() -> None:
    shop = StreamableHTTPHandler(server(), auth=SignIn(), required_scopes=["read"])
    staff = StreamableHTTPHandler(server(), auth=SignIn(scopes=("all",)))
    inner: Any = URLRouter([*shop.urlpatterns("shop/mcp"), *staff.urlpatterns("staff")])
    router = URLRouter([path("api/", inner), *staff.urlpatterns("staff")])
    expected = {
        "/api/shop/mcp": ("/api/.well-known/oauth-protected-resource/shop/mcp", ["read"]),
        "/api/staff": ("/api/.well-known/oauth-protected-resource/staff", ["all"]),
        "/staff/": ("/.well-known/oauth-protected-resource/staff", ["all"]),
    }

    async def work() -> None:
        async with serving(router) as client:
            for mount, (document, scopes) in expected.items():
                told = challenge(await ask(client, mount))
                assert f'resource_metadata="http://localhost{document}"' in told
                found = (await client.get(document)).json()
                assert found["resource"] == f"http://localhost{mount}".rstrip("/")
                assert found["authorization_servers"] == ["http://localhost"]
                assert found["scopes_supported"] == scopes

    anyio.run(work)


@override_settings(
    FORCE_SCRIPT_NAME="/site",
    USE_X_FORWARDED_HOST=True,
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    ALLOWED_HOSTS=["site.example"],
)
def test_behind_a_proxy_the_urls_are_those_that_clients_know() -> None:
    async def work() -> None:
        async with serving(mounted(SignIn())) as client:
            client.headers.update({"X-Forwarded-Host": "site.example", "X-Forwarded-Proto": "https"})
            told = challenge(await ask(client))
            assert 'resource_metadata="https://site.example/site/.well-known/oauth-protected-resource/mcp"' in told
            found = (await client.get("/.well-known/oauth-protected-resource/mcp")).json()
            assert found["resource"] == "https://site.example/site/mcp"
            assert found["authorization_servers"] == ["https://site.example/site"]
            token = signed_in(resource="https://site.example/site/mcp")
            assert who(await ask(client, token=token)) == "ann by signing in, a token"

    anyio.run(work)


def test_a_mount_without_an_authorization_server_names_none() -> None:
    async def work() -> None:
        async with serving(mounted(Personal(), required_scopes=["read"])) as client:
            assert challenge(await ask(client)) == 'Bearer scope="read"'

    anyio.run(work)


def test_a_catch_all_route_of_the_server_does_not_open_the_mcp_endpoint() -> None:
    made = server()

    @made.custom_route("/{rest:path}", methods=["GET", "POST"])
    async def anything(request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(f"the route of {request.path_params['rest']}")

    handler = StreamableHTTPHandler(made, auth=Personal())

    async def work() -> None:
        async with serving(URLRouter(handler.urlpatterns("api"))) as client:
            assert (await ask(client, "/api")).status_code == 401
            assert (await ask(client, "/mcp")).text == "the route of mcp"

    anyio.run(work)


# The log

TOLD = {
    "missing": (None, "Refused a request for '/mcp': it has no bearer token."),
    "malformed": ("", "Refused a request for '/mcp': its bearer token is not accepted."),
    "unknown": ("unknown", "Refused a request for '/mcp': its bearer token is not accepted."),
    "expired": (signed_in(expires_at=1), "Refused a bearer token: it has expired."),
    "for another mount": (
        signed_in(resource="http://localhost/other"),
        "Refused a bearer token: it was issued for http://localhost/other, and not for http://localhost/mcp.",
    ),
    "without the scope": (signed_in(scopes=[]), "Refused a request for '/mcp': its token lacks the scope read."),
}


@pytest.mark.parametrize(("token", "told"), TOLD.values(), ids=TOLD)
def test_each_refused_token_leaves_a_line_in_the_log(
    token: str | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp_serving")

    async def work() -> None:
        async with serving(mounted(Personal(), SignIn(), required_scopes=["read"])) as client:
            assert (await ask(client, token=token)).status_code in (401, 403)

    anyio.run(work)
    assert [each.levelname for each in caplog.records if each.getMessage() == told] == ["INFO"]
