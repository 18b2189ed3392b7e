"""The threads that callers share: whose functions start, and when."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from mcp_serving import current_request
from mcp_serving.fair_threads import FairThreads
from tests.support.harness import DEADLINE, wait_until


class Ran:
    """Functions in threads, which wait until they are let go on, and the callers in whose name they started."""

    def __init__(self, max_threads: int) -> None:
        self.threads = FairThreads(max_threads, "test")
        self.callers: list[str | None] = []
        self.go_on = threading.Semaphore(0)

    def submit(self, caller: str | None) -> Future[None]:
        with current_request.updated(principal=caller):
            return self.threads.submit(self._run, caller)

    def _run(self, caller: str | None) -> None:
        self.callers.append(caller)
        assert self.go_on.acquire(timeout=DEADLINE)

    def started(self, number: int) -> None:
        wait_until(lambda: len(self.callers) == number, f"{number} functions, not {self.callers}")


@contextmanager
def ran(max_threads: int) -> Iterator[Ran]:
    running = Ran(max_threads)
    try:
        yield running
    finally:
        running.go_on.release(1000)


def test_callers_that_wait_for_a_thread_take_turns() -> None:
    with ran(1) as running:
        futures = [running.submit(caller) for caller in ["ann", "ann", "ann", "bob", "cid", "bob"]]
        running.go_on.release(6)
        for future in futures:
            future.result(DEADLINE)
    assert running.callers == ["ann", "ann", "bob", "cid", "ann", "bob"]


@pytest.mark.parametrize(
    ("max_threads", "shares"),
    [(40, [30, 8, 2]), (8, [6, 2]), (4, [3, 1]), (3, [3]), (1, [1])],
)
def test_each_caller_uses_at_most_three_quarters_of_the_threads_that_others_leave(
    max_threads: int, shares: list[int]
) -> None:
    with ran(max_threads) as running:
        for number, share in enumerate(shares):
            for _ in range(max_threads + 1):
                running.submit(f"caller {number}")
            running.started(sum(shares[: number + 1]))
            assert running.callers.count(f"caller {number}") == share


def test_anonymous_callers_use_every_thread() -> None:
    with ran(8) as running:
        for _ in range(9):
            running.submit(None)
        running.started(8)


def test_a_call_that_is_cancelled_while_it_waits_does_not_run_and_keeps_no_thread() -> None:
    with ran(1) as running:
        first, second, third = (running.submit(caller) for caller in ["ann", "bob", "cid"])
        running.started(1)
        assert second.cancel()
        running.go_on.release(2)
        first.result(DEADLINE)
        third.result(DEADLINE)
    assert running.callers == ["ann", "cid"]


def test_an_exception_reaches_its_caller_and_keeps_no_thread() -> None:
    threads = FairThreads(1, "test")
    for _ in range(3):
        with pytest.raises(SystemExit):
            threads.submit(exit).result(DEADLINE)
    assert threads.submit(len, "abc").result(DEADLINE) == 3
