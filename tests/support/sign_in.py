"""A user in a real browser who logs in, reads the consent page and agrees, and the client that waits for the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support import in_django
from tests.support.browser import Browser, Page
from tests.support.harness import DEADLINE

PASSWORD = "only for tests"


def give_password(name: str) -> None:
    """A password with which the user can log in at the site's page."""
    user = in_django.user(name)
    user.set_password(PASSWORD)
    user.save()


def until(page: Page, condition: str, **values: Any) -> Any:
    """What a JavaScript expression returns once it is true, also across navigations of the page."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            if value := page.run(f"return {condition};", **values):
                return value
        except AssertionError:  # the page has gone to its next address in between
            pass
        if time.monotonic() > end:
            raise AssertionError(
                f"{condition} is not true; the page is:\n{page.run('return document.body.innerText;')}"
            )
        time.sleep(0.05)  # a browser has no event for a condition


def log_in(page: Page, name: str, password: str = PASSWORD) -> None:
    until(page, "document.querySelector('input[name=password]')?.isConnected")
    page.run(
        """
        document.querySelector("input[name=username]").value = name;
        document.querySelector("input[name=password]").value = password;
        setTimeout(() => document.querySelector("form button, form [type=submit]").click());
        """,
        name=name,
        password=password,
    )


def agree(page: Page) -> str:
    """Click "Allow" on the consent page; its text."""
    text = until(page, "document.querySelector('button[name=allow]') && document.body.innerText")
    page.run("setTimeout(() => document.querySelector('button[name=allow]').click());")
    return str(text)


def disconnect(browser: Browser, address: str) -> None:
    """Click "Disconnect" on the page of connected apps, whose user is logged in."""
    page = browser.open(f"{address}/oauth/connected-apps/")
    page.run("setTimeout(() => document.querySelector('.apps button').click());")
    until(page, "document.body.innerText.includes('No app is connected')")


class Callback:
    """The address of a client on this machine to which the browser is sent back."""

    def __init__(self, port: int, answers: Queue[dict[str, str]]) -> None:
        self.url = f"http://127.0.0.1:{port}/callback"
        self._answers = answers

    def wait(self) -> dict[str, str]:
        """The parameters of the authorization response."""
        return self._answers.get(timeout=DEADLINE)


@contextmanager
def waiting_for_callback() -> Iterator[Callback]:
    answers: Queue[dict[str, str]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if urlsplit(self.path).path == "/callback":
                answers.put(dict(parse_qsl(urlsplit(self.path).query)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"You may close this page.")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Callback(server.server_port, answers)
        finally:
            server.shutdown()
            thread.join(DEADLINE)
