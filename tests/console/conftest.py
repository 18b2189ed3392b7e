from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import running_browser
from tests.support.console import ConsolePage, Site, serving_console, staff
from tests.support.harness import Notes


@pytest.fixture(scope="module")
def site(users_of_its_own: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    staff("root", "clerk", "ann")
    notes = Notes(tmp_path_factory.mktemp("console") / "notes")
    with (
        serving_console("runmcp", notes.path) as (process, address),
        running_browser(tmp_path_factory.mktemp("browser")) as browser,
    ):
        yield Site(process, address, notes, browser)


@pytest.fixture
def page(site: Site) -> Iterator[ConsolePage]:
    """As the clerk, who is staff and may view users; afterwards, the browser has seen no error."""
    page = site.page("clerk")
    yield page
    page.no_problems()
