"""The pictures of docs/howto/console.md, from the example project: see `make screenshots`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.browser import running_browser
from tests.support.console import ConsolePage
from tests.support.harness import ROOT, running

PICTURES = ROOT / "docs" / "images"
MANAGE = [sys.executable, "manage.py"]


def overview(page: ConsolePage) -> None:
    page.go()


def tools(page: ConsolePage) -> None:
    page.go("tools/")


def result(page: ConsolePage) -> None:
    page.call("sales_report", months="3")


def question(page: ConsolePage) -> None:
    page.call("search_orders", status="open", limit="1")
    number = page.run("return JSON.parse(document.querySelector('#panel-response code').textContent)")
    order = number["result"]["structuredContent"]["orders"][0]["number"]
    page.call("cancel_order", wait=False, number=str(order))
    page.wait_for("document.querySelector('#question form')")


def connect(page: ConsolePage) -> None:
    page.go("connect/")
    page.click(".addresses a")
    page.wait_for("location.search && document.readyState === 'complete'")
    page.click("#tab-vscode")


PAGES: list[tuple[Callable[[ConsolePage], None], str, int, str]] = [
    (overview, "console-overview", 1200, "light"),
    (tools, "console-tools", 1200, "dark"),
    (result, "console-result", 1200, "light"),
    (question, "console-question", 390, "dark"),
    (connect, "console-connect", 1200, "light"),
]


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_DB": f"{folder}/db.sqlite3",
            "EXAMPLE_PORT": "0",
        }
        subprocess.run([*MANAGE, "migrate", "--verbosity", "0"], cwd=ROOT, env=env, check=True)
        told = subprocess.run(
            [*MANAGE, "create_demo_data", "--demo-user"], cwd=ROOT, env=env, check=True, capture_output=True, text=True
        ).stdout
        found = re.search(r"log in as demo with the password (\S+)", told)
        assert found is not None, told
        with (
            running([*MANAGE, "runmcp", "--transport", "http"], env=env) as process,
            running_browser(Path(folder) / "profile") as browser,
        ):
            port = process.wait_for(r"is at http://127\.0\.0\.1:(\d+)/")[1]
            page = ConsolePage(browser.open("about:blank"), f"http://localhost:{port}")
            log_in(page, found[1])
            for show, name, width, scheme in PAGES:
                page.page.show(width, scheme)
                show(page)
                (PICTURES / f"{name}.png").write_bytes(page.page.screenshot())
                print(f"docs/images/{name}.png")


def log_in(page: ConsolePage, password: str) -> None:
    page.go()
    page.run(
        """
        document.querySelector("[name=username]").value = "demo";
        document.querySelector("[name=password]").value = password;
        document.querySelector("form").requestSubmit();
        """,
        password=password,
    )
    page.wait_for("document.title.startsWith('Overview')")


if __name__ == "__main__":
    main()
