"""Signals under web servers that handle SIGTERM themselves, in the main thread, as uvicorn does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any


def run_before_the_server_stops(drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """When the process is asked to stop, run ``drain`` in this event loop, then pass the signal on to the web server.

    A second signal reaches the web server at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler):
        return  # nobody shuts down gracefully: the process just ends
    # Another handler of SIGINT would be asyncio's or Python's own, which no web server waits for.
    numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) == handler]
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def drain_and_pass_on(number: int) -> None:
        try:
            await drain()
        finally:
            signal.raise_signal(number)

    def handle(number: int, _: object) -> None:
        for each in numbers:
            signal.signal(each, handler)
        loop.call_soon_threadsafe(lambda: running.add(loop.create_task(drain_and_pass_on(number))))

    for each in numbers:
        signal.signal(each, handle)
