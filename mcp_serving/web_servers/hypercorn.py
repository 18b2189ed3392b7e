"""Hypercorn: the beginning of its shutdown. No signal reaches its workers, and ASGI has no message for it.

From Python 3.12 on, hypercorn waits for an open stream without limit. Hypercorn is recognised, never imported. This
module uses a name that hypercorn does not declare public: tests/web_servers/test_hypercorn_boundary.py fails when that
name moves, and a warning is logged.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from types import CodeType
from typing import Any

logger = logging.getLogger(__name__)


def run_when_it_stops(drain: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run ``drain`` in this event loop when hypercorn begins to stop; False if hypercorn does not run the loop."""
    package = sys.modules.get("hypercorn")
    if package is None:
        return False
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    trigger = getattr(sys.modules.get("hypercorn.utils"), "raise_shutdown", None)
    serves = False
    for task in asyncio.all_tasks():
        code: CodeType | None = getattr(task.get_coro(), "cr_code", None)
        # There are two such tasks, for different reasons to stop. They end together.
        if code is not None and trigger is not None and code is trigger.__code__:
            task.add_done_callback(lambda _: running.add(loop.create_task(drain())))
            return True
        serves = serves or (code is not None and code.co_filename.startswith(package.__path__[0]))
    if serves:
        logger.warning(
            "This release of hypercorn is not supported: the beginning of its shutdown goes unnoticed, so that calls "
            "in flight are cut and open streams can keep it from ending. Install hypercorn 0.18."
        )
    return False
