"""``runmcp --reload``: the process shuts down gracefully and starts again when the code has changed.

The process replaces itself, so it keeps its id, its terminal and its signals. Before it stops, a trial process imports
the changed code. While that fails, the old code is served.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

from django.utils import autoreload

CLOCK_TICK_SECONDS = 0.01
"""The time of a file may be earlier than the clock by one tick of the kernel."""


def when_code_changes(restart: Callable[[], None], paths: Sequence[str], started: float) -> None:
    """Watch the code in a thread, as ``runserver`` does, and call ``restart`` in it after a change.

    Args:
        restart: called once, when the changed code can be imported.
        paths: the dotted paths that have to be importable.
        started: seconds since the epoch; changes count from this time on.
    """
    Thread(target=_watch, args=(restart, paths, started), name="mcp-serving-reload", daemon=True).start()


def _watch(restart: Callable[[], None], paths: Sequence[str], since: float) -> None:
    reloader = autoreload.get_reloader()
    autoreload.autoreload_started.send(sender=reloader)  # Django then watches templates and translations, too
    while True:
        _wait_for_change(reloader, since)
        since = time.time()
        if _can_be_imported(paths):
            restart()
            return


def _wait_for_change(reloader: autoreload.BaseReloader, since: float) -> None:
    """Return when a file has changed. Django's reloader sees only changes after its first round."""
    with suppress(SystemExit):  # raised by the reloader after a change, because runserver exits here
        for _ in reloader.tick():  # one round a second
            if _has_changed(since - CLOCK_TICK_SECONDS):
                return


def _has_changed(since: float) -> bool:
    now = time.time()
    for path in autoreload.iter_all_python_module_files():
        with suppress(OSError):
            if since < path.stat().st_mtime <= now:
                return True
    return False


def _can_be_imported(paths: Sequence[str]) -> bool:
    trial = [sys.executable, "-m", "mcp_serving.management.trial", *paths]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(trial, env=env, stdin=subprocess.DEVNULL, check=False).returncode == 0
