"""docs/tutorial.md, run as it says it: each file is written, each command typed, what it prints is compared."""

from __future__ import annotations

import re
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documents import DOCS, blocks, write_file
from tests.support.harness import DEADLINE, ROOT, environment, free_port

TUTORIAL = DOCS / "tutorial.md"
END = "=== the command has ended: "


class Terminal:
    """A shell that is typed into, with what it answers up to the end of each command."""

    def __init__(self, folder: Path) -> None:
        env = {key: value for key, value in environment().items() if not key.startswith(("DJANGO_", "PYTHON"))}
        # Lines of a script and of its child come in the order in which they were written, as in a terminal.
        env["PYTHONUNBUFFERED"] = "1"
        self._folder = folder
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=env,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str, answers: str = "") -> str:
        """What it prints; ``answers`` are typed into it.

        Raises:
            AssertionError: its exit status is not 0.
        """
        typed = self._folder / "typed"
        typed.write_text(answers)
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {command}\n}} < {typed}; echo '{END}'$?\n")
        self._shell.stdin.flush()
        printed = self._read_to(END)
        status = printed[-1].removeprefix(END)
        assert status == "0", f"{command}\n{printed}"
        return "".join(line + "\n" for line in printed[:-1])

    def start(self, command: str, ready: str) -> list[str]:
        """Leave it running once it has printed a line."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"exec {command}\n")
        self._shell.stdin.flush()
        return self._read_to(ready)

    def _read_to(self, end: str) -> list[str]:
        assert self._shell.stdout is not None
        lines = []
        for line in self._shell.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(end):
                return lines
        raise AssertionError("\n".join(lines))

    def interrupt(self) -> int:
        self._shell.send_signal(signal.SIGINT)
        return self._shell.wait(DEADLINE)

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal(folder)
    try:
        yield opened
    finally:
        opened.close()


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def lend_packages(venv: Path) -> None:
    """What this Python has installed is installed there too: `pip install` finds it, and asks no package index."""
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]))


@pytest.mark.timeout(300)
def test_the_tutorial_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `python3` is the Python that runs the tests: the packages that it lends may be compiled for it.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')  # type: ignore[attr-defined]
    (programs / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    project = tmp_path / "mysite"
    port = str(free_port())
    with terminal(tmp_path) as first, terminal(tmp_path) as second:
        current = first
        for language, text in blocks(TUTORIAL):
            text = text.replace("8000", port)  # it may be taken on this machine
            if language == "python":
                assert write_file(project, text), f"a block without a file's name: {text}"
                continue
            assert language == "console"
            for command, printed in commands(text):
                if command.endswith("--transport http"):
                    assert first.start(command, printed)[-1:] == printed.splitlines()
                    current = second
                    continue
                answers = "".join(f"{answer}\n" for answer in re.findall(r"\[y/n\] (\w)$", printed, re.MULTILINE))
                # What is typed at a terminal is shown there, by the terminal.
                expected = re.sub(r"(\[y/n\] )\w\n", r"\1", printed)
                said = current.type(command, answers)
                if printed:
                    assert said == expected, command
                if "-m venv" in command:
                    lend_packages(project / ".venv")
        assert first.interrupt() == 0
