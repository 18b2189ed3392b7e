"""Pages in a real browser, on an origin that is allowed and on others: see docs/cors.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import in_django
from tests.support.access_servers import logged_in
from tests.support.asgi_servers import address_of, serving
from tests.support.browser import Browser, Page, running_browser, serving_page
from tests.support.harness import ROOT, Notes, Process, running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@dataclass
class Site:
    """The server, and two pages of other origins, whose user is logged in as ann."""

    process: Process
    address: str
    notes: Notes
    allowed: Page
    stranger: Page


@pytest.fixture(scope="module", params=["runmcp", "uvicorn"])
def site(
    request: pytest.FixtureRequest, browser: Browser, users: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    notes = Notes(tmp_path_factory.mktemp("site") / "notes")
    cookie = logged_in("ann")["Cookie"]
    with serving_page(cookie) as allowed, serving_page(cookie) as stranger:
        env = {
            **in_django.ENVIRONMENT,
            **notes.env,
            "TEST_DEBUG": "0",
            "TEST_TRUSTED_ORIGINS": f'["{allowed}"]',
        }
        named = ["--server", "tests.project.access_asgi.server"] if request.param == "runmcp" else []
        with serving(request.param, "tests.project.cors_asgi", *named, env=env) as (process, address):
            # The same host as the pages have: only so are the cookies sent.
            address = address.replace("127.0.0.1", "localhost")
            yield Site(process, address, notes, browser.open(allowed), browser.open(stranger))


def test_a_page_of_an_allowed_origin_has_a_session_with_all_that_belongs_to_it(site: Site) -> None:
    opened = site.allowed.run(
        """
        globalThis.client = new Client(url);
        const statuses = await client.open();
        const standing = await client.fetch("GET", { Accept: "text/event-stream" });
        globalThis.answer = events(await client.call("slow"));
        const progress = await next(answer, (data) => data.method === "notifications/progress");
        return {
          statuses,
          session: client.headers["Mcp-Session-Id"],
          standing: [standing.status, standing.headers.get("Content-Type")],
          progress: progress.data.params.progress,
          lastEvent: (globalThis.lastEvent = progress.id),
        };
        """,
        url=f"{site.address}/public",
    )
    assert opened["statuses"] == [200, 202]
    assert opened["session"]
    assert opened["standing"] == [200, "text/event-stream"]
    assert opened["progress"] == 1  # while the call goes on
    assert opened["lastEvent"]
    with site.notes.path.open("a") as file:
        file.write("go\n")
    ended = site.allowed.run(
        """
        const isResult = (data) => data.id === "slow";
        const result = await next(answer, isResult);
        const resumed = await client.fetch("GET", { Accept: "text/event-stream", "Last-Event-ID": lastEvent });
        const again = await next(events(resumed), isResult);
        return {
          result: result.data.result.content[0].text,
          again: again.data.result.content[0].text,
          deleted: (await client.fetch("DELETE")).status,
          afterwards: await told(client.call("who")),
        };
        """
    )
    assert ended["result"] == ended["again"] == "for AnonymousUser"
    assert ended["deleted"] == 200
    assert ended["afterwards"]["status"] == 404
    assert "Session" in ended["afterwards"]["text"]


def test_a_page_of_an_allowed_origin_sends_the_headers_of_2026_07_28(site: Site) -> None:
    told = site.allowed.run(
        """
        const client = new Client(url);
        const headers = { "Mcp-Param-Region": "north" };
        return [
          await told(client.callModern("who")),
          await told(client.callModern("find_region", { region: "north" }, { headers })),
          await told(client.callModern("find_region", { region: "south" }, { headers })),
        ];
        """,
        url=f"{site.address}/public",
    )
    assert [answer["status"] for answer in told] == [200, 200, 400]
    assert told[0]["headers"]["content-type"] == "application/json"
    assert "north" in told[1]["text"]
    assert "Mcp-Param-Region" in told[2]["text"]


def test_a_page_of_an_allowed_origin_calls_with_a_token_and_reads_why_it_may_not(site: Site) -> None:
    told = site.allowed.run(
        """
        const call = (headers) => told(new Client(url, { headers }).callModern("who"));
        return {
          token: await call({ Authorization: "Bearer ann-token" }),
          none: await call({}),
          scopeless: await call({ Authorization: "Bearer ann-scopeless" }),
          failing: await call({ Authorization: "Bearer boom-token" }),
        };
        """,
        url=f"{site.address}/token",
    )
    assert {name: answer["status"] for name, answer in told.items()} == {
        "token": 200,
        "none": 401,
        "scopeless": 403,
        "failing": 503,
    }
    assert "ann, in the scope ann" in told["token"]["text"]
    assert told["none"]["headers"]["www-authenticate"].startswith("Bearer")
    assert "insufficient_scope" in told["scopeless"]["headers"]["www-authenticate"]
    assert told["failing"]["headers"]["retry-after"] == "5"


def test_a_page_of_an_allowed_origin_calls_with_the_cookie_of_its_user(site: Site) -> None:
    told = site.allowed.run(
        """
        const call = (credentials) => told(new Client(url, { credentials }).callModern("who"));
        return { included: await call("include"), omitted: await call("omit") };
        """,
        url=f"{site.address}/login",
    )
    assert told["included"]["status"] == 200
    assert "ann, in the scope ann" in told["included"]["text"]
    assert (told["omitted"]["status"], told["omitted"]["text"]) == (401, "Log in first.\n")


def test_a_page_of_an_allowed_origin_reads_nothing_of_django(site: Site) -> None:
    assert site.allowed.run("return told(fetch(url));", url=f"{site.address}/quick/") == "TypeError"


def test_a_page_of_another_origin_gets_nowhere(site: Site) -> None:
    code = """
        const [open, token, login] = ["/public", "/token", "/login"].map((path) => address + path);
        const headers = { Authorization: "Bearer ann-token" };
        return [
          await told(new Client(open).callModern("delete", { what })),
          await told(new Client(token, { headers }).callModern("delete", { what })),
          await told(new Client(login, { credentials: "include" }).callModern("delete", { what })),
          await told(new Client(open).fetch("GET", { Accept: "text/event-stream" })),
        ];
        """
    assert site.stranger.run(code, address=site.address, what="theirs") == ["TypeError"] * 4
    assert [answer["status"] for answer in site.allowed.run(code, address=site.address, what="ours")] == [200] * 3 + [
        400
    ]
    assert site.notes.all().count("deleted ours") == 3
    assert "deleted theirs" not in site.notes.all()


def test_what_a_page_sends_without_asking_is_refused_with_the_cookie_of_its_user(site: Site) -> None:
    # There is no preflight: the browser sends it, cookie and all. It is for the server to say no.
    code = """
        const params = { name: "delete", arguments: { what: "unasked" }, _meta: META };
        const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params });
        const response = await fetch(url, {
          method: "POST", mode: "no-cors", credentials: "include", headers: { "Content-Type": "text/plain" }, body,
        });
        return [response.type, response.status, await response.text()];
        """
    origin = site.stranger.run("return location.origin;")
    for path in ("/login", "/public"):
        assert site.stranger.run(code, url=f"{site.address}{path}") == ["opaque", 0, ""]
        site.process.wait_for(f"Refused a request for '{path}': Origin '{origin}' is neither this host")
    assert "deleted unasked" not in site.notes.all()


def test_a_page_whose_name_now_leads_to_the_server_is_refused(site: Site, browser: Browser) -> None:
    address = site.address.replace("localhost", "evil.example")
    page = browser.open(address)  # what it shows is no matter: the name is its origin
    code = """
        const answer = new Client(`${address}/public`).callModern("delete", { what: "rebound" });
        return [location.origin, await told(answer)];
        """
    origin, told = page.run(code, address=address)
    assert origin == address
    assert told["status"] == 421
    assert "deleted rebound" not in site.notes.all()


# The project of docs/cors.md


def test_the_project_on_the_page_serves_its_page_and_no_other(browser: Browser, tmp_path: Path) -> None:
    document = (ROOT / "docs" / "cors.md").read_text()
    with serving_page() as allowed, serving_page() as stranger:
        manage(tmp_path, "-m", "django", "startproject", "mysite", ".")
        (tmp_path / "mysite" / "mcp.py").write_text(
            "from mcp_serving import MCPServer, get_user\n\n"
            "server = MCPServer('mysite')\n\n\n"
            "@server.tool()\n"
            "async def who() -> str:\n"
            "    return str(get_user())\n"
        )
        for name, code in re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", document, re.DOTALL | re.MULTILINE):
            with (tmp_path / name).open("w" if name == "mysite/asgi.py" else "a") as file:
                file.write(code.replace("https://app.example.com", allowed))
        with (tmp_path / "mysite" / "settings.py").open("a") as settings:
            settings.write("INSTALLED_APPS += ['mcp_serving', 'mcp_serving.tokens']\n")
        manage(tmp_path, "manage.py", "migrate", "--verbosity", "0")
        manage(tmp_path, "manage.py", "createsuperuser", "--noinput", "--username=anna", "--email=anna@example.com")
        token = manage(tmp_path, "manage.py", "mcptoken", "create", "anna").strip()
        command = [sys.executable, "-m", "uvicorn", "--port", "0", "mysite.asgi:application"]
        with running(command, env=project_env(), cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            address = address_of(process, "uvicorn")
            code = 'return told(new Client(url, { headers: { Authorization: `Bearer ${token}` } }).callModern("who"));'
            url = f"{address}/mcp"
            answer = browser.open(allowed).run(code, url=url, token=token)
            assert answer["status"] == 200
            assert "anna" in answer["text"]
            assert browser.open(stranger).run(code, url=url, token=token) == "TypeError"


def project_env() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "TEST_"))}
    return {**clean, "PYTHONPATH": str(ROOT)}


def manage(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=project_env(), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout
