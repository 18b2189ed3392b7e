"""What hypercorn needs: no signal reaches its workers, and ASGI has no message for the beginning of a shutdown.

From Python 3.12 on it would wait for a standing stream for ever. Hypercorn is recognised, never imported.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def run_when_it_stops(rest: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run ``rest`` in this event loop as soon as hypercorn begins to stop; False where hypercorn does not run it."""
    stopping = getattr(sys.modules.get("hypercorn.utils"), "raise_shutdown", None)
    if stopping is None:
        return False
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    for task in asyncio.all_tasks():
        # One of two that wait for different reasons to stop, and end together. They exist once requests are served.
        if getattr(task.get_coro(), "cr_code", None) is stopping.__code__:
            task.add_done_callback(lambda _: running.add(loop.create_task(rest())))
            return True
    return False
