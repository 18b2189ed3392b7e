"""What the documents are made of: fenced blocks, headings, links."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.harness import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.\w+)(, at the end)?\n")


def all_documents() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    yield from DOCS.rglob("*.md")


def blocks(document: Path) -> list[tuple[str, str]]:
    """The language and text of each fenced block."""
    return FENCE.findall(document.read_text())


def write_file(folder: Path, code: str) -> bool:
    """Do what a block says that has a file's name in its first line; whether it has."""
    named = FILE.match(code)
    if named is None:
        return False
    path = folder / named[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() + "\n\n" if named[2] else ""
    path.write_text(before + code)
    return True


def write_files(folder: Path, page: str) -> None:
    """Write each Python file of a page."""
    for language, code in blocks(DOCS / page):
        if language == "python":
            assert write_file(folder, code), f"{page} has a block without a file's name: {code}"


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def links(document: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text()))


def anchors(document: Path) -> set[str]:
    """What a link to a heading may say after its #, as the viewers of Markdown make it."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def project(folder: Path, *pages: str) -> Path:
    """The tutorial's project, with the files of further pages written over it, and its database."""
    shutil.copytree(_tutorial(), folder)
    if pages:
        for page in pages:
            write_files(folder, page)
        _migrate(folder)
    return folder


@cache
def _tutorial() -> Path:
    """The tutorial's project, made once: that takes five processes."""
    base = Path(tempfile.mkdtemp(prefix="mcp-serving-tests-"))
    atexit.register(shutil.rmtree, base)
    folder = base / "mysite"
    folder.mkdir()
    manage(folder, "-m", "django", "startproject", "mysite", ".")
    manage(folder, "manage.py", "startapp", "tasks")
    write_files(folder, "tutorial.md")
    _migrate(folder)
    return folder


def _migrate(folder: Path) -> None:
    manage(folder, "manage.py", "makemigrations", "--verbosity", "0")
    manage(folder, "manage.py", "migrate", "--verbosity", "0")


def environment_of_a_project(**changes: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "TEST_", "MCP_"))}
    return {**clean, "PYTHONPATH": str(ROOT), **changes}


def manage(folder: Path, *arguments: str, **changes: str) -> str:
    """What it prints on standard output; its exit status is 0."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment_of_a_project(**changes),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
