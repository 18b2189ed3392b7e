"""The signals that ask the process to stop: handled in the event loop, and kept away from forked children."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_replaced: dict[signal.Signals, Any] = {}
"""The handlers of before, while those of the event loop are installed."""


@contextmanager
def handled_by(loop: asyncio.AbstractEventLoop, handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handle`` in the loop for each signal that asks the process to stop.

    An ignored signal stays ignored (``nohup`` ignores SIGHUP). Outside the main thread, where Python allows no signal
    handlers, the signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    _replaced.update({number: handler for number, handler in before.items() if handler is not signal.SIG_IGN})
    with _woken_by_signals(loop):
        # Not loop.add_signal_handler(): removing such a handler installs the default one for a moment, and a signal
        # in that moment would kill the process.
        for number in _replaced:
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(handle, signal.Signals(number)))
        try:
            yield
        finally:
            _restore()


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A signal interrupts the loop's wait, so that its handler runs at once, whichever thread has received it."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, lambda: reader.recv(4096))
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def _restore(*, in_child: bool = False) -> None:
    for number, handler in _replaced.items():
        if in_child and getattr(handler, "__module__", "").startswith("mcp_serving."):
            # The handler of runmcp is for the server alone. In a child it might never run: where another thread than
            # the main thread has forked, Python 3.13.0 loses one signal in a hundred for handlers in Python.
            handler = signal.SIG_DFL
        if handler is not None:  # None: it was not installed from Python, and cannot be installed from Python
            signal.signal(number, handler)
    _replaced.clear()


# A forked child (multiprocessing) shares the wake-up descriptor of the event loop: a signal to the child would reach
# the server. The signals are blocked until the child has given the descriptor up.


class _Forking(threading.local):
    """The signals that a forking thread had blocked itself."""

    blocked: set[int] | None = None


_forking = _Forking()


def _block_signals() -> None:
    if _replaced:
        _forking.blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING))


def _unblock_signals() -> None:
    blocked, _forking.blocked = _forking.blocked, None
    if blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _leave_signals_to_parent() -> None:
    if _replaced:
        signal.set_wakeup_fd(-1)
        _restore(in_child=True)
    _unblock_signals()


os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_leave_signals_to_parent)
