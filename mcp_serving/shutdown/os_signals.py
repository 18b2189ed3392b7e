from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_replaced: dict[signal.Signals, Any] = {}
"""The handlers that were there before, while ours are."""


@contextmanager
def handled_by(loop: asyncio.AbstractEventLoop, handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handle`` in the loop for each signal that asks the process to stop.

    A signal that is ignored stays so (``nohup`` ignores SIGHUP). Outside the main thread, where Python
    allows no handlers, signals stay with whoever owns that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    _replaced.update({number: handler for number, handler in before.items() if handler is not signal.SIG_IGN})
    for number in _replaced:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in _replaced:
            loop.remove_signal_handler(number)
        _restore()


def _restore(*, in_child: bool = False) -> None:
    for number, handler in _replaced.items():
        if in_child and getattr(handler, "__module__", "").startswith("mcp_serving."):
            # runmcp's own is for the server alone, and in a child it may never run: Python 3.13.0 loses one signal in
            # a hundred for handlers in Python where another thread than the main one has forked.
            handler = signal.SIG_DFL
        if handler is not None:  # None: it was not installed from Python, and cannot be from there
            signal.signal(number, handler)
    _replaced.clear()


# A forked child (multiprocessing) shares the wake-up descriptor of the loop: a signal to it would reach the
# server. It is held back until the child has given the descriptor up.


def _hold_signals_back() -> None:
    if _replaced:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _let_signals_through() -> None:
    if _replaced:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _leave_the_signals_to_the_parent() -> None:
    if _replaced:
        signal.set_wakeup_fd(-1)
        _restore(in_child=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


os.register_at_fork(
    before=_hold_signals_back,
    after_in_parent=_let_signals_through,
    after_in_child=_leave_the_signals_to_the_parent,
)
