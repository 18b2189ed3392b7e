"""axe-core looks at each page of the console, light and dark, on a desktop and a phone: see `make accessibility`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.accessibility import serious
from tests.support.browser import running_browser
from tests.support.console import ConsolePage, console_page, serving_console, staff

pytestmark = pytest.mark.process

PAGES = [
    "",
    "tools/",
    "tools/every_kind/",
    "resources/",
    "resources/read/?uri=console://json",
    "resources/read/?uri=console://table",
    "resources/read/?uri=console://nothing",
    "resources/template/?uri=console://orders/{city}/{number}",
    "prompts/",
    "prompts/greeting/?show=1&argument-name=Bob",
    "notifications/",
    "connect/",
    "view-as/",
]


@pytest.fixture(scope="module")
def page(users_of_its_own: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsolePage]:
    staff("root")
    notes = tmp_path_factory.mktemp("console") / "notes"
    with (
        serving_console("runmcp", notes) as (_, address),
        running_browser(tmp_path_factory.mktemp("browser")) as browser,
    ):
        yield console_page(browser, address, "root")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_serious_is_found_on_a_page(page: ConsolePage, path: str, scheme: str, width: int) -> None:
    page.page.show(width, scheme)
    page.go(path)
    assert serious(page.page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tool", ["slow", "broken", "media", "delete", "give_back", "interview"])
def test_nothing_serious_is_found_on_a_result_or_a_question(page: ConsolePage, tool: str, scheme: str) -> None:
    page.page.show(1280, scheme)
    asks = tool in ("delete", "give_back", "interview")
    page.call(tool, wait=not asks, **({"name": "tea"} if asks and tool != "interview" else {}))
    if asks:
        page.wait_for("document.querySelector('#question form')")
    assert serious(page.page) == []


def test_a_phone_needs_no_scrolling_sideways(page: ConsolePage) -> None:
    page.page.show(390, "light")
    for path in PAGES:
        page.go(path)
        assert page.run("return document.documentElement.scrollWidth") <= 390, path
