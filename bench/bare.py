"""The SDK's own application on any web server, without Django."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from bench import served

app = served.sdk_server().streamable_http_app(**served.OPTIONS, json_response=os.environ.get("BENCH_JSON") == "1")


class Started:
    """The SDK's application needs the ASGI lifespan, which Daphne does not support: the first request starts it."""

    def __init__(self) -> None:
        self._started: asyncio.Future[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold_lifespan(self._started))
        if not self._started.done():
            await self._started
        await app(scope, receive, send)

    async def _hold_lifespan(self, started: asyncio.Future[None]) -> None:
        async with app.router.lifespan_context(app):
            started.set_result(None)
            await asyncio.Event().wait()


for_daphne = Started()
