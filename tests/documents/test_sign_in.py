"""docs/howto/oauth.md, run: the tutorial's project with sign-in, behind the nginx of docs/howto/nginx.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.documents.test_deployment import HOST, Site, served_by_nginx
from tests.support.browser import Browser, running_browser
from tests.support.documents import DOCS, blocks, environment_of_a_project, manage, project, write_file
from tests.support.nginx import needs_nginx
from tests.support.sdk_sign_in import SDKClient, SignInAgain, leaves, text
from tests.support.sign_in import PASSWORD, disconnect, waiting_for_callback

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

WHO = """

@server.read_tool(scopes=["orders:read"])
def who() -> str:
    return str(get_user())
"""


def code_of_the_page(start: str) -> str:
    (code,) = [code for _, code in blocks(DOCS / "howto/oauth.md") if code.startswith(start)]
    return code


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("sign-in") / "mysite")
    for start in ("# mysite/settings.py, at the end\nfrom mcp_serving.oauth", "# mysite/urls.py, at the end\n"):
        assert write_file(folder, code_of_the_page(start))
    imported, handler = code_of_the_page("from mcp_serving.oauth import OAuth\n").strip().split("\n\n")
    asgi = folder / "mysite" / "asgi.py"
    before = asgi.read_text()
    after = before.replace("from mcp_serving.tokens import UserTokenVerifier", imported)
    after = after.replace("mcp_handler = StreamableHTTPHandler(server, auth=UserTokenVerifier())", handler)
    assert after.count("OAuth") == 2
    asgi.write_text(after)
    with (folder / "mysite" / "mcp.py").open("a") as server:
        server.write(WHO)
    manage(folder, "manage.py", "migrate", "--verbosity", "0")
    script = f"User.objects.create_superuser('ann', password={PASSWORD!r})"
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", script)
    return folder


@pytest.fixture(scope="module")
def site(mysite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The project with the settings and the nginx of docs/howto/nginx.md."""
    for language, code in blocks(DOCS / "howto/nginx.md"):
        if language == "python":
            write_file(mysite, code)
    with served_by_nginx(mysite, tmp_path_factory.mktemp("nginx")) as site:
        yield site


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser that reaches the site by its name, and accepts its certificate."""
    rules = f"--host-resolver-rules=MAP {HOST} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
    with running_browser(tmp_path / "profile", rules, "--ignore-certificate-errors") as browser:
        yield browser


def test_the_check_warns_of_the_login_page_and_of_nothing_else(mysite: Path) -> None:
    command = [sys.executable, "manage.py", "check"]
    done = subprocess.run(command, cwd=mysite, env=environment_of_a_project(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mcp_oauth.W004" in done.stderr
    assert "1 issue" in done.stdout + done.stderr


@needs_nginx
def test_behind_nginx_with_tls_a_client_signs_in_refreshes_and_loses_access(site: Site, browser: Browser) -> None:
    origin = site.url.removesuffix("/mcp")

    async def documents() -> tuple[Any, Any]:
        async with site.http() as http:
            resource = (await http.get(f"{origin}/.well-known/oauth-protected-resource/mcp")).json()
            server = (await http.get(f"{origin}/.well-known/oauth-authorization-server")).json()
            return resource, server

    resource, server = anyio.run(documents)
    assert resource["resource"] == site.url
    assert resource["authorization_servers"] == [origin] == [server["issuer"]]
    endpoints = [value for name, value in server.items() if name.endswith("_endpoint")]
    assert len(endpoints) == 4
    assert all(each.startswith(f"{origin}/oauth/") for each in endpoints)

    async def work(sdk: SDKClient) -> None:
        async with sdk.connected() as client:
            assert await text(client, "who") == "ann"
            first = sdk.storage.tokens
            sdk.auth.context.token_expiry_time = 1  # as if the hour were over
            assert await text(client, "who") == "ann"
            assert sdk.storage.tokens != first
            await anyio.to_thread.run_sync(disconnect, browser, origin)
            await client.call_tool("who", {})

    with waiting_for_callback() as callback:
        sdk = SDKClient(site.url, browser, callback, site.http)
        with pytest.raises(BaseException) as raised:
            anyio.run(work, sdk)
    assert [type(each) for each in leaves(raised.value)] == [SignInAgain], leaves(raised.value)
    assert "See your orders" in sdk.page
