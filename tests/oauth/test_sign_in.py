"""The SDK's OAuth client and a user in Chromium, against real servers: sign in, call, refresh, lose access."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.support.browser import Browser, running_browser
from tests.support.harness import DEADLINE
from tests.support.oauth import challenge_of, serving_with_oauth
from tests.support.sdk_sign_in import SDKClient, SignInAgain, leaves, text
from tests.support.sign_in import disconnect, give_password, log_in, until, waiting_for_callback

pytestmark = [pytest.mark.usefixtures("users_of_its_own"), pytest.mark.process]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(params=["runmcp", "uvicorn"])
def address(request: pytest.FixtureRequest, users: None) -> Iterator[str]:
    give_password("ann")
    with serving_with_oauth(request.param) as address:
        yield address


def test_the_sdks_client_signs_in_calls_refreshes_and_loses_access(address: str, browser: Browser) -> None:
    async def work(sdk: SDKClient) -> None:
        async with sdk.connected() as client:
            assert sdk.storage.client is not None
            assert await text(client, "who") == f"ann through {sdk.storage.client.client_id}"
            first = sdk.storage.tokens
            # As if the hour were over: the client refreshes without its user.
            sdk.auth.context.token_expiry_time = time.time() - 1
            assert (await text(client, "who")).startswith("ann through")
            assert first is not None
            assert sdk.storage.tokens is not None
            assert sdk.storage.tokens.access_token != first.access_token
            assert sdk.storage.tokens.refresh_token != first.refresh_token
            await anyio.to_thread.run_sync(disconnect, browser, address)
            await client.call_tool("who", {})  # the client wants to sign in again, which its user does not

    with waiting_for_callback() as callback:
        sdk = SDKClient(f"{address}/mcp", browser, callback)
        with pytest.raises(BaseException) as raised:
            anyio.run(work, sdk)
    assert [type(each) for each in leaves(raised.value)] == [SignInAgain], leaves(raised.value)
    for shown in ("The SDK's client", "127.0.0.1", "ann", "Read your notes", "Change and delete your notes"):
        assert shown in sdk.page


def test_the_browser_shows_the_consent_page_in_no_frame(address: str, tmp_path: Path) -> None:
    # From the same origin, where a page can read its frames: the login page, which may be framed, is the control.
    code = """
        const text = async (url) => {
          const frame = document.createElement("iframe");
          frame.src = url;
          const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
          document.body.append(frame);
          await loaded;
          return frame.contentDocument?.body?.innerText ?? "refused";
        };
        return [await text("/login/"), await text(url)];
        """
    with running_browser(tmp_path) as browser:
        page = browser.open(consent_url(address))
        log_in(page, "ann")
        until(page, "document.querySelector('button[name=allow]')?.isConnected")
        login, consent = browser.open(f"{address}/login/").run(code, url=consent_url(address))
    assert "Username" in login
    assert consent == "refused"


def consent_url(address: str) -> str:
    metadata = {"client_name": "A client", "redirect_uris": ["https://client.example/cb"]}
    registered: Any = httpx2.post(
        f"{address}/oauth/register/", json={**metadata, "token_endpoint_auth_method": "none"}, timeout=DEADLINE
    ).json()
    query = {
        "response_type": "code",
        "client_id": registered["client_id"],
        "redirect_uri": "https://client.example/cb",
        "scope": "notes:read",
        "code_challenge": challenge_of("v" * 50),
        "code_challenge_method": "S256",
        "resource": f"{address}/mcp",
    }
    return str(httpx2.URL(f"{address}/oauth/authorize/", params=query))


def test_the_consent_page_fits_a_phone_follows_the_dark_mode_and_works_with_the_keyboard(
    address: str, tmp_path: Path
) -> None:
    with running_browser(tmp_path) as browser:
        page = browser.open(consent_url(address))
        log_in(page, "ann")
        until(page, "document.querySelector('button[name=allow]')?.isConnected")
        page._command("Emulation.setDeviceMetricsOverride", width=320, height=640, deviceScaleFactor=2, mobile=True)
        fits = page.run("return document.documentElement.scrollWidth <= innerWidth;")
        colours = []
        for scheme in ("light", "dark"):
            page._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours.append(page.run("return getComputedStyle(document.body).color;"))
        reached = []
        for _ in range(4):
            for kind in ("rawKeyDown", "keyUp"):
                page._command("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(page.run("return document.activeElement.innerText;"))
    assert fits
    assert colours[0] != colours[1]
    assert reached == ["Allow", "Cancel", "Use another account", "connected apps"]
