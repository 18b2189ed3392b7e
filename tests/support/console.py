"""The console in a real browser, as one of the users of the tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.utils import timezone

from tests.support import in_django
from tests.support.access_servers import logged_in
from tests.support.asgi_servers import serving
from tests.support.browser import Browser, Page
from tests.support.harness import DEADLINE, Notes, Process

SETTINGS = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_console"}


_KEY_CODES = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowLeft": 37, "ArrowRight": 39}


class ConsolePage:
    """One page of the browser at the console."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = f"{address}/mcp-console/"

    def log_in(self, name: str) -> None:
        cookie = logged_in(name)["Cookie"].partition("=")[2]
        self.page._command("Network.setCookie", name="sessionid", value=cookie, url=self.address)

    def log_out(self) -> None:
        self.page._command("Network.clearBrowserCookies")

    def go(self, path: str = "") -> str:
        """Open a page of the console; its heading."""
        self.page.go(self.address + path)
        return str(self.run("return document.querySelector('h1')?.innerText ?? document.body.innerText"))

    def run(self, code: str, **values: Any) -> Any:
        return self.page.run(code, **values)

    def text(self, selector: str) -> str:
        found: str = self.run("return document.querySelector(selector)?.innerText ?? ''", selector=selector)
        return found

    def wait_for(self, condition: str, **values: Any) -> Any:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + DEADLINE
        while not (found := self.run(f"return Boolean({condition})", **values)):
            state = self.run("return document.getElementById('result')?.innerText ?? document.body?.innerText ?? ''")
            assert time.monotonic() < end, f"not {condition}; the page shows {state[:500]!r}"
            time.sleep(0.02)
        return found

    def fill(self, **values: Any) -> None:
        """Fill in arguments, by their paths with "__" between, as a user does."""
        self.run(
            """
            for (const [name, value] of Object.entries(values)) {
              const field = document.getElementsByName(`arguments-${name}`)[0];
              if (!field) throw new Error(`no field ${name}`);
              if (field.type === "checkbox") field.checked = value;
              else field.value = value;
              field.dispatchEvent(new Event("input", { bubbles: true }));
              field.dispatchEvent(new Event("change", { bubbles: true }));
            }
            """,
            values=values,
        )

    def click(self, selector: str) -> None:
        self.run(
            "const found = document.querySelector(selector); if (!found) throw new Error(selector); found.click()",
            selector=selector,
        )

    def call(self, tool: str, wait: bool = True, **arguments: Any) -> str:
        """Run a tool from its page; the text of its result."""
        self.go(f"tools/{tool}/")
        self.fill(**arguments)
        self.click("#call [type=submit]")
        if wait:
            self.wait_for("document.querySelector('#result .took')")
        return self.text("#result")

    def press(self, key: str, *, ctrl: bool = False, shift: bool = False) -> None:
        """Press a key, as a user does at the keyboard: "Tab", "Enter", "ArrowRight" or a character."""
        text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
        named = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": _KEY_CODES.get(key, 0)}
        named["modifiers"] = 2 * ctrl + 8 * shift
        self.page._command("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        self.page._command("Input.dispatchKeyEvent", type="keyUp", **named)

    def tab_to(self, condition: str, limit: int = 60) -> None:
        """Press Tab until the JavaScript condition holds for ``focused``."""
        for _ in range(limit):
            if self.run(f"const focused = document.activeElement; return Boolean({condition})"):
                return
            self.press("Tab")
        raise AssertionError(f"not reached with Tab: {condition}")

    def no_problems(self) -> None:
        """The console of the browser is free of errors."""
        self.run("return 1")  # takes what has arrived
        assert not self.page.problems, self.page.problems


@dataclass
class Site:
    """A running console, with a browser."""

    process: Process
    address: str
    notes: Notes
    browser: Browser

    def page(self, user: str) -> ConsolePage:
        return console_page(self.browser, self.address, user)


def token_of(name: str, *scopes: str) -> str:
    """A fresh bearer token of a user."""
    tokens = apps.get_model("mcp_tokens", "Token")._default_manager
    _row, text = tokens.issue(in_django.user(name), scopes=scopes, expires=timezone.now() + timedelta(days=1))
    return str(text)


@contextmanager
def serving_console(server: str, notes: Path, **env: str) -> Iterator[tuple[Process, str]]:
    named = ["--server", "tests.project.console.server"] if server == "runmcp" else []
    with serving(server, "tests.project.console_asgi", *named, env={**SETTINGS, "TEST_NOTES": str(notes), **env}) as (
        process,
        address,
    ):
        yield process, address.replace("127.0.0.1", "localhost")


def staff(*names: str) -> None:
    from django.contrib.auth.models import User

    User.objects.filter(username__in=names).update(is_staff=True)


def console_page(browser: Browser, address: str, user: str) -> ConsolePage:
    page = ConsolePage(browser.open("about:blank"), address)
    page.log_in(user)
    return page
