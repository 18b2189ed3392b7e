"""The page that a browser gets at the MCP endpoint: with access, and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from django.contrib.auth.models import AnonymousUser
from django.test import override_settings

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.tokens import UserTokenVerifier
from tests.project import settings_with_console
from tests.support import in_django

CHANGED = ("INSTALLED_APPS", "ROOT_URLCONF", "MIDDLEWARE", "TEMPLATES", "STATIC_URL", "ALLOWED_HOSTS")


@pytest.fixture(autouse=True)
def site(users: None) -> Iterator[None]:
    with override_settings(**{name: getattr(settings_with_console, name) for name in CHANGED}):
        yield


def visit(user: Any = None, *, method: str = "GET", **options: Any) -> httpx2.Response:
    """What a browser gets from a handler with these options."""
    handler = StreamableHTTPHandler(MCPServer("secret-name", title="The secret title"), **options)
    handler.paths.append("/mcp")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await handler({**scope, "user": user or AnonymousUser()}, receive, send)

    async def work() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://testserver") as client:
            return await client.request(method, "/mcp", headers={"Accept": "text/html"})

    return anyio.run(work)


def test_a_caller_with_access_reads_the_name_the_address_and_the_configurations() -> None:
    answer = visit(public=True)
    assert answer.status_code == 200
    for expected in ("The secret title", "http://testserver/mcp", "Claude Desktop", "[mcp_servers.secret-name]"):
        assert expected in answer.text
    assert '<a href="http://testserver/mcp-console/">Open the console</a>' in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_user_who_is_logged_in_reads_the_same_where_the_login_is_required() -> None:
    answer = visit(in_django.user("ann"), login_required=True)
    assert answer.status_code == 200
    assert "The secret title" in answer.text


@pytest.mark.parametrize("options", [{"login_required": True}, {"auth": "token"}])
def test_a_visitor_is_offered_the_login_and_reads_nothing_of_the_server(options: dict[str, Any]) -> None:
    if "auth" in options:
        options = {"auth": UserTokenVerifier()}
    answer = visit(**options)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"]
    assert '<a href="/admin/login/?next=%2Fmcp">Log in</a>' in answer.text
    for secret in ("secret", "MCP", "console", "Claude"):
        assert secret not in answer.text


def test_a_user_without_a_token_is_told_that_programs_send_one() -> None:
    answer = visit(in_django.user("ann"), auth=UserTokenVerifier())
    assert answer.status_code == 401
    assert "this address, however, is for programs that send a token" in answer.text.lower()
    assert "secret" not in answer.text


def test_a_head_request_has_the_headers_alone() -> None:
    answer = visit(login_required=True, method="HEAD")
    assert answer.status_code == 401
    assert answer.content == b""


def test_without_the_console_there_is_no_link_to_it() -> None:
    apps = [app for app in settings_with_console.INSTALLED_APPS if app != "mcp_serving.console"]
    with override_settings(INSTALLED_APPS=apps):
        assert "console" not in visit(public=True).text
