"""The home page and the page about installation, followed in a new Django project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.walkthrough import Shell, follow, new_project, shell
from tests.support.documents import DOCS

pytestmark = pytest.mark.process


pytestmark = pytest.mark.process


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as opened:
        yield opened


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["index.md", "installation.md"])
def test_the_page_works_as_it_is_written(page: str, terminal: Shell, tmp_path: Path) -> None:
    project = new_project(terminal, tmp_path)
    follow(DOCS / page, terminal, terminal, project)
