from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in ours:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in ours:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
