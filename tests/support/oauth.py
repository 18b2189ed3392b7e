"""An OAuth client in a few lines, and a browser of Django's test client: for tests of the authorization server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.http import HttpResponse
from django.test import Client as Browser

from tests.support import in_django
from tests.support.asgi_servers import serving

SITE = "http://testserver"
RESOURCE = f"{SITE}/mcp"
REDIRECT = "https://client.example/callback"


@contextmanager
def serving_with_oauth(server: str) -> Iterator[str]:
    """tests/project/oauth_asgi.py in a process that prints no traceback; its address."""
    env = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth"}
    named = ["--server", "tests.project.oauth_asgi.server"] if server == "runmcp" else []
    with serving(server, "tests.project.oauth_asgi", *named, env=env) as (process, address):
        yield address
    assert "Traceback" not in process.errors


def challenge_of(verifier: str) -> str:
    """The PKCE challenge of a verifier, by S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def hidden_fields(page: str) -> dict[str, str]:
    """The hidden fields of a page's first form."""
    form = page.partition("<form")[2].partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="(\w+)"(?: value="([^"]*)")?', form)
    return {name: html.unescape(value) for name, value in found}


def browser_of(name: str, **options: Any) -> Browser:
    """A browser in which a user is logged in."""
    browser = Browser(enforce_csrf_checks=True, **options)
    browser.force_login(in_django.user(name))
    return browser


def register(metadata: dict[str, Any], address: str) -> Any:
    """Dynamic client registration from an IP address, of which each may register so many clients."""
    return Browser().post("/oauth/register/", metadata, content_type="application/json", REMOTE_ADDR=address)


@dataclass
class OAuthClient:
    """A client that signs a user in, step by step."""

    browser: Browser
    redirect_uri: str = REDIRECT
    resource: str | None = RESOURCE
    scope: str = "notes:read"
    client_id: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))

    def register(self, **metadata: Any) -> dict[str, Any]:
        """Dynamic client registration; remembers the client id."""
        told = {
            "client_name": "Notes client",
            "redirect_uris": [self.redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": "none",
            **metadata,
        }
        response = register(told, address=f"client {secrets.token_hex(8)}")
        assert response.status_code == 201, response.content
        registered: dict[str, Any] = response.json()
        self.client_id = registered["client_id"]
        return registered

    def question(self, **changes: Any) -> HttpResponse:
        """The answer to the authorization request; None as a value leaves the parameter out."""
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.scope,
            "state": "the-state",
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
            "resource": self.resource,
            **changes,
        }
        given = {name: value for name, value in query.items() if value is not None}
        return self.browser.get("/oauth/authorize/", given)  # type: ignore[return-value]

    def answer(self, page: HttpResponse, *, allow: bool = True, **changes: Any) -> HttpResponse:
        """Send the form of the consent page."""
        fields = {**hidden_fields(page.content.decode()), **changes}
        return self.browser.post(  # type: ignore[return-value]
            page.wsgi_request.get_full_path(),  # type: ignore[attr-defined]
            {**fields, **({"allow": "on"} if allow else {})},
        )

    def code(self, **changes: Any) -> str:
        """The authorization code that the user's consent leads to."""
        page = self.question(**changes)
        assert page.status_code == 200, (page.status_code, page.headers, page.content)
        return parameters_of(self.answer(page))["code"]

    def exchange(self, code: str, **changes: Any) -> HttpResponse:
        fields = {"code": code, "redirect_uri": self.redirect_uri, "code_verifier": self.verifier, **changes}
        return self._token(grant_type="authorization_code", **fields)

    def refresh(self, refresh_token: str, **changes: Any) -> HttpResponse:
        return self._token(grant_type="refresh_token", refresh_token=refresh_token, **changes)

    def _token(self, **fields: Any) -> HttpResponse:
        fields = {"client_id": self.client_id, "resource": self.resource, **fields}
        given = {name: value for name, value in fields.items() if value is not None}
        return Browser().post("/oauth/token/", given)  # type: ignore[return-value]

    def tokens(self) -> dict[str, Any]:
        """Sign in: the token response."""
        if not self.client_id:
            self.register()
        response: Any = self.exchange(self.code())
        assert response.status_code == 200, response.content
        told: dict[str, Any] = response.json()
        return told


def client_of(user: str, **options: Any) -> OAuthClient:
    """A registered client, in the browser of a user who is logged in."""
    client = OAuthClient(browser_of(user), **options)
    client.register()
    return client


def parameters_of(response: Any) -> dict[str, str]:
    """The parameters with which a response sends the user back to the client."""
    assert response.status_code == 302, (response.status_code, response.content)
    return dict(parse_qsl(urlsplit(response["Location"]).query))


def ask(token: str | None, at: str = "/mcp", tool: str = "who", **options: Any) -> Any:
    """The response to a call of a tool at a mount of tests/project/oauth_asgi.py."""
    import anyio
    import httpx2

    from mcp_serving.asgi import lifecycle
    from tests.project.oauth_asgi import application
    from tests.support.harness import call
    from tests.support.raw_http import headers_of

    message = call(1, tool, modern=True)
    headers = headers_of(message) | ({} if token is None else {"Authorization": f"Bearer {token}"})

    async def work() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=application)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url=SITE) as client:
            try:
                return await client.post(at, json=message, headers={**headers, **options})
            finally:
                await lifecycle.close()

    return anyio.run(work)


def told(response: Any) -> str:
    """The text of a tool's result."""
    assert response.status_code == 200, response.text
    line = next(each for each in response.text.splitlines() if '"result"' in each)
    return str(json.loads(line.removeprefix("data: "))["result"]["content"][0]["text"])
