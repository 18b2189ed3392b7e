"""A thread pool that callers share: many calls of one caller do not keep the other callers waiting."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from mcp_serving import current_request

P = ParamSpec("P")
T = TypeVar("T")

BUSY_FOR_EACH_FREE = 3
"""A caller may take another thread while it uses fewer than this number of threads for each free thread. One caller
alone uses three quarters of the threads, rounded up. The next caller uses three quarters of the rest."""


@dataclass(slots=True, eq=False)
class _Call:
    """A function that waits for a thread or runs in one."""

    caller: str
    function: Callable[[], Any]
    future: Future[Any]


class FairThreads(Executor):
    """Threads for the functions of all callers. The callers take turns, and no user or token uses all threads.

    The limit needs four threads or more. ``CurrentRequest.principal`` tells callers apart. Anonymous callers count as
    one caller, which may use every thread.

    Args:
        max_threads: how many functions run at once.
        thread_name_prefix: how the names of the threads begin.
    """

    def __init__(self, max_threads: int, thread_name_prefix: str) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix=thread_name_prefix)
        self._lock = threading.Lock()
        self._free = max_threads
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Call]] = {}
        """The calls that wait, by caller. The caller whose turn is next comes first."""

    @property
    def busy(self) -> int:
        """The number of threads that run a function."""
        return sum(list(self._busy.values()))

    @property
    def waiting(self) -> int:
        """The number of functions that wait for a thread."""
        return sum(len(calls) for calls in list(self._waiting.values()))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function: at once if its caller may take a thread, and otherwise when it is its turn."""
        call = _Call(current_request.get().principal or "", partial(fn, *args, **kwargs), Future())
        with self._lock:
            self._waiting.setdefault(call.caller, deque()).append(call)
            self._start_calls()
        return call.future

    def _start_calls(self) -> None:
        while self._free and (caller := next(filter(self._may_take_a_thread, self._waiting), None)) is not None:
            calls = self._waiting.pop(caller)
            call = calls.popleft()
            if calls:
                self._waiting[caller] = calls  # behind the other callers
            self._free -= 1
            self._busy[caller] += 1
            self._pool.submit(self._run, call)

    def _may_take_a_thread(self, caller: str) -> bool:
        return not caller or self._busy[caller] < BUSY_FOR_EACH_FREE * self._free

    def _run(self, call: _Call) -> None:
        caller = call.caller
        if call.future.set_running_or_notify_cancel():
            try:
                result = call.function()
            except BaseException as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(result)
        del call  # a reference cycle: the traceback of an exception refers to this frame
        with self._lock:
            self._free += 1
            self._busy[caller] -= 1
            if not self._busy[caller]:
                del self._busy[caller]
            self._start_calls()
