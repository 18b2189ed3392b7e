from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any


def run_before_the_server_hears(rest: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """When the process is asked to stop: run ``rest`` in this event loop, then let the web server know.

    Where the web server handles SIGTERM itself, in the main thread, as uvicorn does. A second signal
    reaches it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    servers = signal.getsignal(signal.SIGTERM)
    if not callable(servers):
        return  # the process just ends
    # Another handler of SIGINT would be asyncio's or Python's own, which no web server waits for.
    numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) == servers]
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def rest_and_pass_on(number: int) -> None:
        try:
            await rest()
        finally:
            signal.raise_signal(number)

    def handle(number: int, _: object) -> None:
        for each in numbers:
            signal.signal(each, servers)
        loop.call_soon_threadsafe(lambda: running.add(loop.create_task(rest_and_pass_on(number))))

    for each in numbers:
        signal.signal(each, handle)
