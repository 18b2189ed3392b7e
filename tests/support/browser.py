"""A real browser: headless Chromium, whose pages run what a test tells them to."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websockets.sync.client import ClientConnection, connect

from tests.support.harness import DEADLINE, Process, must_be_installed, running

SCRIPT = (Path(__file__).parent / "page.js").read_text()

# It is to talk to the servers of the tests and to nobody else.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--remote-debugging-port=0",
    # One name that leads to this machine, as after DNS rebinding; no other is looked up.
    "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]


class Browser:
    """Chromium, by its DevTools protocol."""

    def __init__(self, process: Process) -> None:
        port = process.wait_for(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/")[1]
        self._address = f"http://127.0.0.1:{port}/json"
        self._debuggers = ExitStack()

    def open(self, url: str) -> Page:
        """A new page, once it is loaded."""
        with urlopen(Request(f"{self._address}/new?about:blank", method="PUT"), timeout=DEADLINE) as answer:
            target = json.load(answer)
        debugger = connect(target["webSocketDebuggerUrl"], open_timeout=DEADLINE, max_size=None)
        page = Page(self._debuggers.enter_context(debugger))
        page.enable()
        page.go(url)
        return page

    def close(self) -> None:
        self._debuggers.close()


class Page:
    """A page of the browser, by the connection to its debugger."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent = 0
        self.problems: list[str] = []
        """What the console of the browser shows as an error: exceptions, refused scripts, failed requests."""

    def enable(self) -> None:
        """Have the browser tell what happens, and give each document the functions of page.js."""
        for domain in ("Page", "Runtime", "Log"):
            self._command(f"{domain}.enable")
        self._command("Page.addScriptToEvaluateOnNewDocument", source=SCRIPT)

    def go(self, url: str) -> None:
        self._command("Page.navigate", url=url)
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def show(self, width: int, scheme: str, height: int = 900) -> None:
        """Make the page so many CSS pixels wide, in the colour scheme "light" or "dark"."""
        mobile = width < 600
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        self._command("Emulation.setScrollbarsHidden", hidden=True)
        self.run("scrollTo(0, 0)")  # a bar that sticks to the top would stand in the middle of the picture
        size = self._command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self._command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        return base64.b64decode(data)

    def run(self, code: str, **values: Any) -> Any:
        """What an async function with this body returns; it has the functions of page.js, and ``values``.

        Raises:
            AssertionError: it threw, which is shown.
        """
        constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
        expression = f"(async () => {{\n{constants}{code}\n}})()"
        done = self._command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, f"{done['exceptionDetails']['exception'].get('description')}\nin {code}"
        return done["result"].get("value")

    def _command(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        self._connection.send(json.dumps({"id": self._sent, "method": method, "params": params}))
        while (message := self._message()).get("id") != self._sent:
            pass
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(DEADLINE))
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.problems.append(str(params["args"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message


@contextmanager
def running_browser(profile: Path, *options: str) -> Iterator[Browser]:
    """Chromium with a profile of its own; skips the test only where there is none and it cannot be installed.

    Args:
        profile: a folder of its own.
        options: of its command line, in addition.
    """
    program = shutil.which("chromium")
    if program is None:
        must_be_installed("The browser is missing: apt-get install chromium.")
    command = [program, *OPTIONS, *options, f"--user-data-dir={profile}"]
    # A group of its own, because its many processes end a moment after the first.
    with running(command, env={**os.environ, "HOME": str(profile)}, start_new_session=True) as process:
        browser = Browser(process)
        try:
            yield browser
        finally:
            browser.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def serving_page(cookie: str = "") -> Iterator[str]:
    """A site with one empty page, on a port of its own; its origin.

    Args:
        cookie: what it sets, for all ports of localhost: cookies do not know of ports.
    """

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            if cookie:
                self.send_header("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Lax")
            self.end_headers()
            self.wfile.write(b"<!doctype html>")

        def log_message(self, *_: object) -> None:
            pass

    with serving_access_servers(Site) as origin:
        yield origin


@contextmanager
def serving_access_servers(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """A site on a port of its own; its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(DEADLINE)
