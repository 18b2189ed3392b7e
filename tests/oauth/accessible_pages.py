"""axe-core looks at the pages of signing in, light and dark, on a desktop and a phone: see `make accessibility`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oauth.test_sign_in import consent_url
from tests.support import in_django
from tests.support.accessibility import serious
from tests.support.asgi_servers import serving
from tests.support.browser import Page, running_browser
from tests.support.oauth import client_of
from tests.support.sign_in import give_password, log_in, until

pytestmark = [pytest.mark.usefixtures("users_of_its_own"), pytest.mark.process]


@pytest.fixture(scope="module")
def address(users: None) -> Iterator[str]:
    give_password("ann")
    env = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_oauth"}
    with serving("uvicorn", "tests.project.oauth_asgi", env=env) as (_, address):
        yield address


@pytest.fixture
def page(address: str, tmp_path: Path) -> Iterator[Page]:
    """A page whose user is logged in, and has connected an app."""
    client_of("ann", scope="notes:read notes:write").tokens()
    with running_browser(tmp_path) as browser:
        page = browser.open(f"{address}/oauth/connected-apps/")
        log_in(page, "ann")
        until(page, "document.querySelector('.apps button')?.isConnected")
        yield page


@pytest.mark.parametrize("width", [1280, 320])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_accessible_and_fits(address: str, page: Page, width: int, scheme: str) -> None:
    page.show(width, scheme)
    for url in (f"{address}/oauth/connected-apps/", consent_url(address), f"{address}/oauth/authorize/?client_id=x"):
        page.go(url)
        assert page.run("return document.body.innerText.length > 50;")
        assert serious(page) == []
        assert page.run("return document.documentElement.scrollWidth <= innerWidth;"), url
