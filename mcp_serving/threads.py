"""Threads for Django's ORM: a bounded pool for sync functions, and a thread of its own for an async function.

A connection belongs to the thread that opened it. Sync functions run in the pool, with the semantics of
``channels.db.database_sync_to_async``: a stale connection is replaced before the function runs, and a connection
that is not to be kept is closed after it, and its object is deleted. The async ORM runs in the thread-sensitive
thread of the call. That thread starts when it is first used, so that a call without a database starts no thread.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext
from channels.db import DatabaseSyncToAsync
from django.core.cache import close_caches
from django.db import connections, reset_queries, transaction

from mcp_serving import current_request
from mcp_serving.fair_threads import FairThreads

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LOOKUP_THREADS = 8
"""Threads for lookups (permissions, used answers). Each lookup is a short query."""


class DjangoThreads:
    """The threads that the sync functions of one server share.

    Args:
        max_threads: how many sync functions may run at once, and so how many connections they may have. One user or
            token uses at most three quarters of them, rounded up.

    Raises:
        ValueError: ``max_threads`` is less than 1.
    """

    def __init__(self, max_threads: int) -> None:
        if max_threads < 1:
            raise ValueError(f"max_threads is {max_threads!r}; it has to be 1 or more.")
        self.pool = FairThreads(max_threads, thread_name_prefix="mcp-serving")
        self._lookups = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="mcp-serving-lookup")

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the project, sync or async, or sync with an awaitable result.

        A sync function may use the ORM, and waits for a free thread.
        """
        return await self._call(self.pool, function, *args, **kwargs)

    async def look_up(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function that decides whether a request may proceed.

        Lookups have their own threads, so that an async tool does not wait for sync tools.
        """
        return await self._call(self._lookups, function, *args)

    async def _call(self, pool: Executor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if is_async(function):
            return await function(*args, **kwargs)
        result = await self._run(pool, function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _run(self, pool: Executor, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        prepared = _for_a_thread(_atomic(function))
        current = current_request.get()
        if current.in_callers_thread or current.holds_a_thread:
            # Not PooledSyncToAsync: it closes connections in a transaction, and Django's TestCase is in one.
            # And a sync function that calls another must not wait for a second thread: if all did, none were free.
            runner = SyncToAsync(prepared, thread_sensitive=True)
        else:
            runner = PooledSyncToAsync(prepared, thread_sensitive=False, executor=pool)
        result: T = await runner(*args, **kwargs)
        return result


class PooledSyncToAsync(DatabaseSyncToAsync):  # type: ignore[misc] # channels.db has no types
    """``database_sync_to_async`` that checks each connection of an earlier call before its first query."""

    def thread_handler(self, *args: Any, **kwargs: Any) -> Any:
        check_kept_connections()
        reset_queries()
        try:
            return super().thread_handler(*args, **kwargs)
        finally:
            close_caches()
            _forget_closed_connections()


def check_kept_connections() -> None:
    """Let Django check each connection of this thread before its next query.

    Unless ``CONN_HEALTH_CHECKS`` is on, Django notices that the database closed a kept connection
    (``CONN_MAX_AGE``) only when a query fails. A browser's user repeats a failed request; a failed tool call is
    not repeated.
    """
    for connection in connections.all(initialized_only=True):
        connection.health_check_enabled = True  # type: ignore[attr-defined] # not in django-stubs


def _forget_closed_connections() -> None:
    """Give the next call new connection objects, as each request of Django has, where connections are not kept.

    A project may store state of a call on the object, such as the tenant.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None and not connection.in_atomic_block:
            del connections[connection.alias]


def _for_a_thread(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` as it runs in a thread for the event loop."""
    call, submitted_at = current_request.get().call, time.perf_counter()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if call is not None:
            call.thread_wait += time.perf_counter() - submitted_at
        try:
            with current_request.updated(holds_a_thread=True):
                return function(*args, **kwargs)
        except StopIteration as error:  # a future cannot hold it: the caller would wait for ever
            raise RuntimeError("The function raised StopIteration.") from error

    return run


def _atomic(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` in a transaction of each database with ``ATOMIC_REQUESTS``, as Django runs a view.

    ``transaction.non_atomic_requests`` exempts it, as it exempts a view.
    """
    exempt = non_atomic_databases(function)
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and alias not in exempt:
            function = transaction.atomic(using=alias)(function)
    return function


def without_atomic_requests(function: F) -> F:
    """Mark ``function``, so that Django and ``DjangoThreads`` start no transaction for it, on any database."""
    for alias in connections:
        transaction.non_atomic_requests(using=alias)(function)
    return function


def non_atomic_databases(function: Callable[..., Any]) -> set[str]:
    """The databases that ``transaction.non_atomic_requests`` names, on a partial or on the function in it."""
    named: set[str] = set(getattr(function, "_non_atomic_requests", ()))
    return named | non_atomic_databases(function.func) if isinstance(function, functools.partial) else named


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function``, which may be a partial or an object with ``__call__``, returns a coroutine."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def async_orm_thread() -> AbstractContextManager[object]:
    """Give the async ORM a thread for this call alone: a slow query of another call does not delay it."""
    return nullcontext() if current_request.get().in_callers_thread else _CallThread()


class _CallThread:
    """The thread in which the async ORM runs for the length of a block. It starts when it is first used."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._has_ended = False

    def __enter__(self) -> None:
        self._current = current_request.updated(orm_thread=self)
        self._current.__enter__()
        self._token = SyncToAsync.thread_sensitive_context.set(_CALL_CONTEXT)
        self._waiting_executor = None
        if _may_run_in_async_to_sync():
            # Otherwise asgiref would run the ORM in the thread that waits in async_to_sync().
            self._waiting_executor = getattr(AsyncToSync.executors, "current", None)
            AsyncToSync.executors.current = None

    def __exit__(self, *_: object) -> None:
        try:
            if self._waiting_executor is not None:
                AsyncToSync.executors.current = self._waiting_executor
            SyncToAsync.thread_sensitive_context.reset(self._token)
            self._current.__exit__(None, None, None)
        finally:
            del self._current  # the two refer to each other: only the garbage collector would free them
            self._has_ended = True
            if self._thread is not None:
                # Close its connections and end it, without waiting for a function that still runs.
                self._thread.submit(connections.close_all)
                self._thread.shutdown(wait=False)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._has_ended:
            raise RuntimeError("A task used the async ORM after the end of its call. Await the task in the call.")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="mcp-serving-call")
        return self._thread.submit(fn, *args, **kwargs)


def _may_run_in_async_to_sync() -> bool:
    """Whether ``async_to_sync`` may have started this code. It is slow to ask asgiref, and a transport never does."""
    current = current_request.get()
    if current.holds_a_thread or current.in_flight is None:
        return True
    is_in_process = current.mcp_context is not None and current.mcp_context.request is None
    return is_in_process and current.in_flight.connection is not None  # None over stdio


class _CallThreadExecutor(Executor):
    """Runs each function in the thread of the call that submits it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        thread = current_request.get().orm_thread
        assert isinstance(thread, _CallThread)
        return thread.submit(fn, *args, **kwargs)


# All calls share one context of asgiref. To enter one with an executor takes a tenth of the CPU time of a short call.
_CALL_CONTEXT = ThreadSensitiveContext()
SyncToAsync.context_to_thread_executor[_CALL_CONTEXT] = _CallThreadExecutor()
