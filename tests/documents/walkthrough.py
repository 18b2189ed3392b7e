"""Follow a page as a reader does: write its files, type its commands, compare what they print."""

from __future__ import annotations

import re
import shlex
import signal
import site
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.documents import blocks, write_file
from tests.support.harness import DEADLINE, ROOT, environment

END = "=== the command has ended: "
AT_A_TERMINAL = """
import os, pty, sys

command, *answers = sys.argv[1:]
child, terminal = pty.fork()
if not child:
    os.execvp("bash", ["bash", "-c", f"stty -opost; {command}"])
printed = b""
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:  # the command has ended
        break
    os.write(1, piece)
    printed += piece
    if printed.lower().endswith(b"[y/n] "):
        os.write(terminal, answers.pop(0).encode() + b"\\n")
        printed = b""
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""A program that runs a command at a terminal of its own and answers its questions."""


class Shell:
    """A shell that reads commands from a pipe, with the output of each command."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "programs"
        programs.mkdir(exist_ok=True)
        # `python3` is the Python that runs the tests: the packages that it lends may be compiled for it.
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')  # type: ignore[attr-defined]
        (programs / "python3").chmod(0o755)
        (programs / "at_a_terminal.py").write_text(AT_A_TERMINAL)
        env = {key: value for key, value in environment().items() if not key.startswith(("DJANGO_", "PYTHON"))}
        env["PATH"] = f"{programs}:/usr/bin:/bin"
        env["HOME"] = str(folder)  # a page may configure an MCP client, in a file of its user
        # The lines of a script and of its child then come in the order in which they were written, as in a terminal.
        env["PYTHONUNBUFFERED"] = "1"
        self._programs = programs
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

    def type(self, command: str, answers: Sequence[str] = ()) -> str:
        """Run a command and return what it prints; with answers, at a terminal, where they are typed.

        Raises:
            AssertionError: its exit status is not 0.
        """
        if answers:
            command = f"python3 {self._programs}/at_a_terminal.py {shlex.join([command, *answers])}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {command}\n}} < /dev/null; echo '{END}'$?\n")
        self._shell.stdin.flush()
        printed = self._read_to(re.escape(END))
        status = printed[-1].removeprefix(END)
        assert status == "0", f"{command}\n{printed}"
        return "".join(line + "\n" for line in printed[:-1])

    def start(self, command: str, ready: str) -> str:
        """Run a command until it prints a line that matches ``ready``; return this line."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"exec {command}\n")
        self._shell.stdin.flush()
        return self._read_to(ready)[-1]

    def _read_to(self, end: str) -> list[str]:
        assert self._shell.stdout is not None
        lines = []
        for line in self._shell.stdout:
            lines.append(line.rstrip("\n"))
            if re.match(end, line):
                return lines
        raise AssertionError("\n".join(lines))

    def interrupt(self) -> int:
        self._shell.send_signal(signal.SIGINT)
        return self._shell.wait(DEADLINE)

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    opened = Shell(folder)
    try:
        yield opened
    finally:
        opened.close()


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        while command.endswith("\\"):
            line, _, printed = printed.partition("\n")
            command += f"\n{line}"
        yield command, printed


def lend_packages(venv: Path) -> None:
    """Make the packages of this Python importable there: `pip install` finds them and asks no package index."""
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT)]))


def new_project(terminal: Shell, folder: Path) -> Path:
    """A new Django project named mysite in a virtual environment of its own, for a page that begins with one."""
    project = folder / "mysite"
    terminal.type("mkdir mysite && cd mysite && python3 -m venv --without-pip .venv && . .venv/bin/activate")
    lend_packages(project / ".venv")
    pip = project / ".venv" / "bin" / "pip"  # runs the lent pip: to install one takes four seconds of CPU
    pip.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    pip.chmod(0o755)
    terminal.type("python -m django startproject mysite .")
    return project


def follow(page: Path, first: Shell, second: Shell, project: Path) -> str:
    """Follow the page in the first terminal, and in the second one once the first is serving.

    A server on the page listens on port 8000; here it listens on a free port, which replaces 8000 in what follows and
    is returned.
    """
    current, port = first, "8000"
    for language, text in blocks(page):
        text = text.replace("8000", port)
        if language == "python":
            text = text.replace("tcp:port=8000", "tcp:port=0")
            assert write_file(project, text), f"a block without a file's name: {text}"
        if language != "console":
            continue
        for command, printed in commands(text):
            if "--transport http" in command or "--transport both" in command:
                ready = re.escape(printed.strip()).replace("8000", r"(\d+)")
                line = first.start(command.replace("8000", "0"), ready)
                (port,) = re.match(ready, line).groups()  # type: ignore[union-attr]
                current = second
                continue
            said = current.type(command, re.findall(r"\[y/[nN]\] (\w)$", printed, re.MULTILINE))
            if printed:
                assert said == printed, command
            if "-m venv" in command:
                lend_packages(project / ".venv")
    return port
