"""The site of the documents, and the links of all of them."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import mcp_serving
from tests.support.documents import DOCS, all_documents, anchors, links
from tests.support.harness import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does it."""
    pytest.importorskip("sphinx", reason="the extra [docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "-m sphinx" in line]
    command = line.strip().replace("$(BIN)/python", sys.executable).replace("$(SITE)", str(folder)).split()
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


class _Loads(HTMLParser):
    """What a browser loads for a page by itself, and the names of its anchors."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        names = {"link": ["href"], "a": []}.get(tag, ["src", "srcset", "data", "poster"])
        self.loaded |= {given[name] for name in names if name in given}


@pytest.mark.process
def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for target in _Loads(page.read_text()).loaded:
            assert not urlsplit(target).netloc, f"{page}: {target}"
    for sheet in site.rglob("*.css"):
        for target in re.findall(r"(?:@import|url\()\s*[\"']?([^\"')\s]+)", sheet.read_text()):
            assert urlsplit(target).scheme in ("", "data"), f"{sheet}: {target}"


@pytest.mark.process
def test_every_page_is_in_the_navigation(site: Path) -> None:
    navigation = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        if page.name != "index.md":
            assert f'href="{page.relative_to(DOCS).with_suffix(".html")}"' in navigation, page


@pytest.mark.process
@pytest.mark.parametrize("module", ["mcp_serving", "mcp_serving.daphne", "mcp_serving.testing", "mcp_serving.tokens"])
def test_every_public_name_is_on_the_page_about_the_api(site: Path, module: str) -> None:
    described = _Loads((site / "reference" / "api.html").read_text()).ids
    imported = importlib.import_module(module)
    own = [name for name, value in vars(imported).items() if getattr(value, "__module__", "") == module]
    names = getattr(imported, "__all__", None) or [name for name in own if not name.startswith("_")]
    assert names
    for name in names:
        assert f"{module}.{name}" in described, name


def test_every_public_thing_has_a_docstring() -> None:
    for name in mcp_serving.__all__:
        assert inspect.getdoc(getattr(mcp_serving, name)), name


# Links


@pytest.mark.parametrize("document", sorted(all_documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(document: Path) -> None:
    for link in links(document):
        target, _, anchor = link.partition("#")
        if urlsplit(link).scheme:
            parts = urlsplit(link)
            assert parts.scheme == "https", link
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), link
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path), link
