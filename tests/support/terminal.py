"""A process at a terminal of its own: its session's leader, with a pty as the controlling terminal."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.harness import Process, environment, running

AT_ITS_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("django", run_name="__main__", alter_sys=True)
"""
"""Code for ``python -c``: makes the terminal on standard input the controlling terminal, then runs ``django-admin``."""


class Terminal:
    """The user's side of a pty."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._open = True

    def type(self, text: bytes) -> None:
        os.write(self.descriptor, text)

    def read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.descriptor, 1)
        return line

    def hang_up(self) -> None:
        if self._open:
            self._open = False
            os.close(self.descriptor)


@contextmanager
def at_a_terminal(*arguments: str, env: dict[str, str] | None = None) -> Iterator[tuple[Process, Terminal]]:
    """``runmcp`` on standard input and output of a terminal; its standard error is read as ever."""
    master, slave = pty.openpty()
    terminal = Terminal(master)
    command = [sys.executable, "-c", AT_ITS_TERMINAL, "runmcp", *arguments]
    try:
        with running(
            command, env=environment(**(env or {})), stdin=slave, stdout=slave, start_new_session=True
        ) as process:
            os.close(slave)
            yield process, terminal
    finally:
        with suppress(OSError):
            terminal.hang_up()
