"""docs/tutorial.md, followed as it is written: each file, each command, each line of output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.walkthrough import follow, shell
from tests.support.documents import DOCS

pytestmark = pytest.mark.process


@pytest.mark.timeout(300)
def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    with shell(tmp_path) as first, shell(tmp_path) as second:
        follow(DOCS / "tutorial.md", first, second, tmp_path / "mysite")
        assert first.interrupt() == 0
