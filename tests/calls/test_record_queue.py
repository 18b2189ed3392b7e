"""The queue between the calls and a thread: its order, its limit and its flush."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_serving import record_queue
from mcp_serving.record_queue import RecordQueue
from tests.support.harness import DEADLINE, wait_until


def test_while_the_thread_is_held_up_the_oldest_are_dropped_and_their_number_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_queue, "MAX_WAITING", 3)
    monkeypatch.setattr(record_queue, "_BATCH", 2)
    delivered: list[int] = []
    is_held_up, let_go = threading.Event(), threading.Event()

    def deliver(batch: Sequence[int]) -> None:
        is_held_up.set()
        assert let_go.wait(DEADLINE)
        delivered.extend(batch)

    queue = RecordQueue("numbers", deliver)
    queue.put(0)
    assert is_held_up.wait(DEADLINE)
    for number in range(1, 8):
        queue.put(number)  # never waits
    let_go.set()
    asyncio.run(queue.flush(DEADLINE))
    assert delivered == [0, 5, 6, 7]
    line = "Dropped the oldest numbers, because they could not be delivered in time: "
    dropped = [message.removeprefix(line) for message in caplog.messages if message.startswith(line)]
    assert sum(int(number.removesuffix(".")) for number in dropped) == 4


def test_a_batch_that_fails_is_delivered_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_queue, "_RETRY_SECONDS", 0.01)
    delivered: list[int] = []
    has_failed, has_more = threading.Event(), threading.Event()

    def deliver(batch: Sequence[int]) -> None:
        if not has_failed.is_set():
            has_failed.set()
            assert has_more.wait(DEADLINE)
            raise SystemExit("not now")
        delivered.extend(batch)

    queue = RecordQueue("numbers", deliver)
    queue.put(1)
    assert has_failed.wait(DEADLINE)
    queue.put(2)
    has_more.set()

    async def work() -> None:
        while len(delivered) < 2:  # noqa: ASYNC110 - the event is in a thread
            await asyncio.sleep(0.01)
        await queue.flush(DEADLINE)

    asyncio.run(asyncio.wait_for(work(), DEADLINE))
    assert delivered == [1, 2]


def test_a_flush_ends_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    let_go = threading.Event()
    queue = RecordQueue("numbers", lambda batch: let_go.wait(DEADLINE))
    queue.put(1)
    asyncio.run(asyncio.wait_for(queue.flush(0.05), DEADLINE))
    let_go.set()
    assert "Lost at the shutdown, because they were not delivered in time: numbers (1)." in caplog.text


def test_an_idle_thread_closes_its_connections_even_if_conn_max_age_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_queue, "_IDLE_SECONDS", 0.05)
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    used: list[BaseDatabaseWrapper] = []

    def deliver(_: Sequence[int]) -> None:
        connection = connections["default"]
        connection.ensure_connection()
        used.append(connection)

    RecordQueue("numbers", deliver).put(1)
    wait_until(lambda: bool(used) and used[0].connection is None, "a closed connection")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python's, since 3.12: there are threads
def test_a_forked_process_delivers_its_own_items_and_none_of_its_parent() -> None:
    let_go = threading.Event()
    delivered: list[int] = []

    def deliver(batch: Sequence[int]) -> None:
        assert let_go.wait(DEADLINE)
        delivered.extend(batch)

    queue = RecordQueue("numbers", deliver)
    queue.put(1)
    queue.put(2)
    child = os.fork()
    if child == 0:
        let_go.set()
        queue.put(3)
        asyncio.run(queue.flush(DEADLINE))
        os._exit(delivered != [3])
    assert os.waitpid(child, 0)[1] == 0
    let_go.set()
    asyncio.run(queue.flush(DEADLINE))
    assert delivered == [1, 2]


def test_an_item_of_one_of_many_threads_is_delivered_without_another_item() -> None:
    delivered: set[str] = set()
    queue: RecordQueue[str] = RecordQueue("names", delivered.update)

    def put(thread: int) -> None:
        for name in [f"{number} of thread {thread}" for number in range(100)]:
            queue.put(name)
            wait_until(partial(delivered.issuperset, [name]), f"{name} is delivered")

    with ThreadPoolExecutor() as pool:
        list(pool.map(put, range(4)))
    assert len(delivered) == 400
