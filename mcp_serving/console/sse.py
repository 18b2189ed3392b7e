"""Server-sent events: what happens during a call or a subscription, as a page is told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from django.http import StreamingHttpResponse

KEEP_ALIVE_SECONDS = 15.0
"""A proxy may end a response that is silent for longer."""

Emit = Callable[[str, Any], None]


def streaming(work: Callable[[Emit], Awaitable[None]]) -> StreamingHttpResponse:
    """A response that lasts as long as ``work``, and sends what it emits.

    ``work`` runs in a task of its own, which is cancelled when the browser closes the response.
    """
    response = StreamingHttpResponse(_events(work), content_type="text/event-stream")
    response.headers["X-Accel-Buffering"] = "no"  # nginx would keep it back
    return response


async def _events(work: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(event: str, data: Any) -> None:
        queue.put_nowait(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    # A scope, not the task: a cancelled task is taken for a fault of the handler in it.
    scope = anyio.CancelScope()

    async def run() -> None:
        try:
            with scope:
                await work(emit)
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        yield b": open\n\n"
        while True:
            try:
                chunk = await asyncio.wait_for(queue.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                chunk = b": still here\n\n"
            if chunk is None:
                break
            yield chunk
        await task
    finally:
        scope.cancel()
        # Not left running: the permissions and the connections of the call belong to this response.
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
