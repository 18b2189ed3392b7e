"""Clients of others sign in to a server of ours, with a user in Chromium: ``make clients``.

Each client is a script that is given JSON, with ``url`` and ``mode``. It prints ``{"open": URL}`` where its user has
to sign in, and waits for the answer at an address of its own. Then it calls ``who``, prints ``{"called": TEXT}``, and
calls again for each line that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.clients.inspector_pages import CLICKS, inspecting
from tests.clients.real_clients import FASTMCP, HERE, TYPESCRIPT
from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.browser import Browser, running_browser
from tests.support.harness import environment, running
from tests.support.nginx import needs_nginx, nginx
from tests.support.oauth import serving_with_oauth
from tests.support.sign_in import agree, disconnect, give_password, log_in, until

from django.utils import timezone  # isort: skip - after Django is set up
from oauth2_provider.models import AccessToken, RefreshToken  # isort: skip

pytestmark = [pytest.mark.usefixtures("users_of_its_own"), pytest.mark.process]

CLIENTS = {
    "fastmcp-auto": ([FASTMCP[0], str(HERE / "fastmcp_sign_in.py")], "auto", "FastMCP Client"),
    "fastmcp-legacy": ([FASTMCP[0], str(HERE / "fastmcp_sign_in.py")], "legacy", "FastMCP Client"),
    "typescript-v1": ([TYPESCRIPT[0], str(HERE / "typescript_sign_in.mjs")], "v1", "TypeScript v1"),
    "typescript-v2-auto": ([TYPESCRIPT[0], str(HERE / "typescript_sign_in.mjs")], "auto", "TypeScript auto"),
    "typescript-v2-legacy": ([TYPESCRIPT[0], str(HERE / "typescript_sign_in.mjs")], "legacy", "TypeScript legacy"),
}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser in which nobody is logged in."""
    with running_browser(tmp_path / "profile") as browser:
        yield browser


@pytest.fixture(scope="module", params=["runmcp", "uvicorn"])
def address(request: pytest.FixtureRequest, users: None) -> Iterator[str]:
    give_password("ann")
    with serving_with_oauth(request.param) as address:
        yield address


def is_refreshed() -> bool:
    """Whether the client has used its first refresh token, and has got a second."""
    return [token.revoked is None for token in RefreshToken.objects.order_by("pk")] == [False, True]


def end_access_tokens() -> None:
    """As if the hour were over for which they are valid."""
    AccessToken.objects.update(expires=timezone.now() - timedelta(seconds=1))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_signs_in_calls_refreshes_and_loses_access(address: str, browser: Browser, name: str) -> None:
    command, mode, shown = CLIENTS[name]
    RefreshToken.objects.all().delete()
    spec = {"url": f"{address}/mcp", "mode": mode}
    with running([*command, json.dumps(spec)], env=environment()) as client:
        page = browser.open(client.receive()["open"])
        log_in(page, "ann")
        assert shown in agree(page)
        called: dict[str, Any] = client.receive()
        assert called["called"].startswith("ann through "), called

        end_access_tokens()
        client.send(b"again\n")
        assert client.receive() == called
        assert is_refreshed()

        disconnect(browser, address)
        client.send(b"again\n")
        assert set(client.receive()) == {"open"}  # its user has to sign in again


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspectors_page_signs_in_calls_refreshes_and_loses_access(
    address: str, browser: Browser, era: str, tmp_path: Path
) -> None:
    RefreshToken.objects.all().delete()
    with inspecting(browser, f"{address}/mcp", era, tmp_path) as page:
        log_in(page, "ann")
        assert "MCP Inspector" in agree(page)
        until(page, "document.body.innerText.includes('Authorization complete')")
        page.run(f"{CLICKS} await click('Tools'); await click('who'); await click('Execute Tool');")
        page.run(f"{CLICKS} await shown('ann through ');")

        end_access_tokens()
        page.run(f"{CLICKS} await click('list_notes'); await click('Execute Tool'); await shown('bread');")
        assert is_refreshed()

        disconnect(browser, address)
        page.run(f"{CLICKS} await click('around'); await click('Execute Tool');")
        until(page, "location.pathname === '/oauth/authorize/'")  # its user has to agree again


# What docs/howto/oauth.md says that clients report

OF_FASTMCP, OF_TYPESCRIPT = "fastmcp-auto", ("typescript-v1", "typescript-v2-auto")
REPORTED = [
    ("other host", OF_FASTMCP, r"Protected resource http://localhost:\d+/mcp does not match expected http://127"),
    *(("other host", name, r"does not match expected http://127\S+ \(or origin\)") for name in OF_TYPESCRIPT),
    ("off", OF_FASTMCP, "Registration failed: 404"),
    *(("off", name, "Incompatible auth server: does not support dynamic") for name in OF_TYPESCRIPT),
    ("too many", OF_FASTMCP, "Registration failed: 429"),
    ("too many", "typescript-v1", "Too many clients have registered"),
    ("too many", "typescript-v2-auto", r"Dynamic Client Registration rejected \(HTTP 429\)"),
]
SETTINGS: dict[str, dict[str, Any]] = {"off": {"DCR_ENABLED": False}, "too many": {"DCR_REGISTRATIONS_PER_HOUR": 0}}


@needs_nginx
@pytest.mark.parametrize(("mistake", "name", "reported"), REPORTED)
def test_a_client_reports_a_mistake_in_these_words(
    users: None, mistake: str, name: str, reported: str, tmp_path: Path
) -> None:
    env = {
        **in_django.ENVIRONMENT,
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth",
        "TEST_OAUTH": json.dumps(SETTINGS.get(mistake, {})),
    }
    command, mode, _ = CLIENTS[name]
    with serving("uvicorn", "tests.project.oauth_asgi", env=env) as (_, address):
        host = "localhost:PORT" if mistake == "other host" else "$http_host"
        site = (
            f"server {{ listen 127.0.0.1:PORT; location / {{ proxy_pass {address}; proxy_set_header Host {host}; }} }}"
        )
        with nginx(tmp_path / "nginx", site) as port:
            spec = json.dumps({"url": f"http://127.0.0.1:{port}/mcp", "mode": mode})
            with running([*command, spec], env=environment()) as client:
                client.wait_for(reported)
