"""The Inspector's web pages in Chromium, clicked through as a user does: ``make clients``.

The page of 2.12 speaks to a Node process of its own, which speaks to the server. That of 1.0, which its makers still
keep secure, speaks to the server itself, from the origin that it was loaded from: what docs/cors.md is about.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.npm import MODULES, script
from tests.support.asgi_servers import serving
from tests.support.browser import Browser, Page, running_browser, serving_access_servers
from tests.support.daphne_limits import accepts
from tests.support.harness import environment, reserved_port, running, wait_until

pytestmark = pytest.mark.process

INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
OLDER_PAGE = MODULES / "@modelcontextprotocol" / "inspector-client" / "dist"
TOOLS = ["add", "count", "delete_order", "wait", "outlast"]

CLICKS = """
const until = async (reached) => {
  for (const end = Date.now() + 15000; ; await new Promise((resolve) => setTimeout(resolve, 20))) {
    const value = reached();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within 15 s: ${reached}, but:\\n${document.body.innerText}`);
  }
};
// The innermost element with exactly this text.
const says = (each, text) => each.innerText?.trim() === text && each.checkVisibility();
const element = (text) => [...document.querySelectorAll("body *")].findLast((each) => says(each, text));
const click = async (text) => (await until(() => element(text))).click();
const shown = (text) => until(() => document.body.innerText.includes(text));
const fill = async (selector, index, value) => {
  const input = await until(() => document.querySelectorAll(selector)[index]);
  // As if it were typed: React listens to the event, and looks at what the browser's own setter has set.
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, value);
  input.dispatchEvent(new Event("input", { bubbles: true }));
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def inspecting(browser: Browser, url: str, era: str, home: Path) -> Iterator[Page]:
    """The Inspector's page, which is asked to connect to an MCP endpoint."""
    env = environment(
        HOME=str(home),
        MCP_AUTO_OPEN_ENABLED="false",
        MCP_INSPECTOR_API_TOKEN="of-this-test",
        MCP_INSPECTOR_SECRET_STORE="memory",
        MCP_SANDBOX_PORT="0",
    )
    with reserved_port() as port:
        env["CLIENT_PORT"] = str(port)
        target = ["--transport", "http", "--server-url", url, "--protocol-era", era]
        with running([*script(INSPECTOR), "--web", *target], env=env, stdout=subprocess.DEVNULL):
            wait_until(lambda: accepts(port), "the Inspector's page is there")
            page = browser.open(f"http://127.0.0.1:{port}/?MCP_INSPECTOR_API_TOKEN=of-this-test")
            page.run(f'{CLICKS} (await until(() => document.querySelector("[role=switch]"))).click();')
            yield page


@pytest.mark.parametrize(("era", "protocol"), [("legacy", "2025-11-25"), ("modern", "2026-07-28")])
def test_the_inspectors_page_lists_the_tools_and_calls_one(
    browser: Browser, era: str, protocol: str, tmp_path: Path
) -> None:
    settings = {"DJANGO_SETTINGS_MODULE": "tests.clients.settings"}
    with serving("runmcp", "tests.clients.asgi", env=settings) as (process, address):
        with inspecting(browser, f"{address}/mcp", era, tmp_path) as page:
            saw = page.run(
                f"""
                {CLICKS}
                await shown(`MCP ${{protocol}}`);
                await click("Tools");
                await shown("Tools (5)");
                const listed = tools.filter(element);
                await click("add");
                await fill(".mantine-NumberInput-input", 0, "2");
                await fill(".mantine-NumberInput-input", 1, "3");
                await click("Execute Tool");
                await shown('"total": 5');
                return {{ listed, text: document.body.innerText }};
                """,
                protocol=protocol,
                tools=TOOLS,
            )
        assert "Traceback" not in process.errors
    assert saw["listed"] == TOOLS
    assert "Structured Output" in saw["text"]


@pytest.mark.parametrize("trusted", [True, False])
def test_the_inspectors_older_page_connects_from_its_own_origin_where_that_is_trusted(
    browser: Browser, trusted: bool
) -> None:
    with serving_access_servers(partial(QuietFiles, directory=OLDER_PAGE)) as origin:
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.clients.settings",
            "TEST_TRUSTED_ORIGINS": json.dumps([origin] if trusted else []),
        }
        with serving("runmcp", "tests.clients.asgi", env=env) as (process, address):
            browser.open(origin).run("localStorage.setItem('lastConnectionType', 'direct');")
            target = urlencode({"transport": "streamable-http", "serverUrl": f"{address}/mcp"})
            page = browser.open(f"{origin}/?{target}")
            page.run(f"{CLICKS} await click('Connect');")
            if not trusted:
                page.run(f"{CLICKS} await shown('Connection Error');")
                return
            saw = page.run(
                f"""
                {CLICKS}
                await shown("clients-server");
                // These tabs react before the click.
                const tab = await until(() => document.querySelector("[role=tab][id$=trigger-tools]"));
                tab.dispatchEvent(new MouseEvent("mousedown", {{ bubbles: true }}));
                await click("List Tools");
                await until(() => element("delete_order"));
                const listed = tools.filter(element);
                await click("add");
                await fill("input[type=number]", 0, "2");
                await fill("input[type=number]", 1, "3");
                await click("Run Tool");
                await shown("Tool Result: Success");
                return {{ listed, text: document.body.innerText }};
                """,
                tools=TOOLS,
            )
        assert "Traceback" not in process.errors
    assert saw["listed"] == TOOLS
    assert re.search(r"total:\s*5", saw["text"])
