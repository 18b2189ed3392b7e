"""The name of hypercorn that is used although it is not public."""

from __future__ import annotations

import asyncio
import inspect

import hypercorn.asyncio.run
import pytest
from hypercorn import utils
from hypercorn.config import Config

from mcp_serving.web_servers import hypercorn as recognised


def test_hypercorn_waits_for_its_shutdown_in_tasks_of_raise_shutdown() -> None:
    source = inspect.getsource(hypercorn.asyncio.run.worker_serve)
    assert hypercorn.asyncio.run.raise_shutdown is utils.raise_shutdown
    assert "create_task(raise_shutdown(" in source


async def serve(drained: list[bool]) -> None:
    """Hypercorn serves until its trigger, which is set once the hook has been installed."""
    asked, stop = asyncio.Event(), asyncio.Event()
    config = Config()
    config.bind = ["127.0.0.1:0"]
    found: list[bool] = []

    async def app(scope: object, receive: object, send: object) -> None: ...

    async def drain() -> None:
        drained.append(True)

    async def trigger() -> None:
        found.append(recognised.run_when_it_stops(drain))
        asked.set()
        await stop.wait()

    serving = asyncio.create_task(
        hypercorn.asyncio.serve(app, config, shutdown_trigger=trigger)  # type: ignore[arg-type]
    )
    async with asyncio.timeout(20):
        await asked.wait()
        stop.set()
        await serving
        await asyncio.sleep(0)
    assert found == [bool(drained)]


def test_the_beginning_of_its_shutdown_is_noticed() -> None:
    drained: list[bool] = []
    asyncio.run(serve(drained))
    assert drained == [True]


def test_a_name_that_has_moved_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(utils, "raise_shutdown")
    drained: list[bool] = []
    asyncio.run(serve(drained))
    assert drained == []
    [message] = [each for each in caplog.messages if "hypercorn" in each]
    assert "goes unnoticed" in message


def test_where_hypercorn_does_not_run_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> bool:
        return recognised.run_when_it_stops(ask)  # type: ignore[arg-type]

    assert asyncio.run(ask()) is False
    assert caplog.messages == []
