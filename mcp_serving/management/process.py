"""What ``runmcp`` does to a process that it owns: its standard descriptors and its exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from mcp_serving.stdio.streams import is_open


def open_closed_descriptors() -> None:
    """Put /dev/null on the standard descriptors that were closed at the start, as ``0<&-`` does.

    Otherwise the next socket would get such a number, and ``print()`` and child processes would write to it. If a
    library has taken a number already, the process starts again from its command line: Twisted's reactor does that
    when Django loads the app "daphne".
    """
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)  # None if the descriptor was closed
    closed = [descriptor for descriptor, stream in enumerate(streams) if stream is None]
    taken = [descriptor for descriptor in closed if is_open(descriptor)]
    for descriptor in closed:
        null = os.open(os.devnull, os.O_RDWR)
        if null == descriptor:
            os.set_inheritable(descriptor, True)
        else:
            os.dup2(null, descriptor)
            os.close(null)
    if taken:
        _start_again()


def exit_at_once(status: Any) -> NoReturn:
    """End the process, even if threads still run.

    Worker threads are not daemons: an idle thread of anyio, or a thread in a call that cannot be cancelled, would
    block the exit of the interpreter. The shutdown has already waited for such threads until its deadline. Even
    without them, the interpreter's own cleanup takes longer than the shutdown of an idle server.
    """
    _run_exit_functions()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def restart() -> NoReturn:
    """Replace the process by a new one with the same command line."""
    _run_exit_functions()
    _start_again()


def _run_exit_functions() -> None:
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if the process was started with it closed
        with suppress(OSError, ValueError):
            stream.flush()


def _start_again() -> NoReturn:
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
