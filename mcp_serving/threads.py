"""Where a handler meets Django's ORM: a bounded pool for sync functions, a thread of its own for async ones.

Each handler's connections are those of the thread that it uses. Sync functions run in the pool, with the
semantics of ``channels.db.database_sync_to_async``: a stale connection is replaced before, and one that is
not to be kept is closed after. The async ORM runs in the thread-sensitive thread of the call, which starts
when it is first used, so that a call that uses no database pays for no thread.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from channels.db import DatabaseSyncToAsync
from django.db import connections, transaction
from mcp.server.mcpserver.resolve import Resolve

from mcp_serving import current_request

P = ParamSpec("P")
T = TypeVar("T")

LOOKUP_THREADS = 8
"""How many lookups (permissions, answered questions) may run at once: each is a short query."""


class DjangoThreads:
    """The threads that the sync handlers of one server share.

    Args:
        most: how many sync functions may run at once, and so how many connections they may have.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_threads is {most!r}; at least one thread is needed.")
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="mcp-serving")
        self._lookups = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="mcp-serving-lookup")
        self._wrapped: dict[Hashable, tuple[Callable[..., Any], Callable[..., Awaitable[Any]]]] = {}

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the user's, sync or async; also one that is sync and returns an awaitable.

        A sync one may use the ORM, and waits for a free thread.
        """
        return await self._call(self._pool, function, *args, **kwargs)

    async def look_up(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call what decides whether a call may go on: for that, an async tool waits for no sync one."""
        return await self._call(self._lookups, function, *args)

    async def _call(self, pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if is_async(function):
            return await function(*args, **kwargs)
        result = await self._run(pool, function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _run(self, pool: ThreadPoolExecutor, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        prepared = _in_thread(_atomic(function))
        if current_request.get().in_callers_thread or current_request.get().holds_a_thread:
            # Not Channels' class: it closes connections in a transaction, and Django's TestCase is in one. Nor
            # another thread for what a sync function calls: where each waits for one more, none is ever free.
            runner = SyncToAsync(prepared, thread_sensitive=True)
        else:
            runner = InPool(prepared, thread_sensitive=False, executor=pool)
        result: T = await runner(*args, **kwargs)
        return result

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """``function`` as an async one with the same signature; its resolvers too, as the SDK runs those."""
        # What cannot be hashed is told apart by its identity, which lasts: it is kept here.
        key: Hashable = function if isinstance(function, Hashable) else id(function)
        if key not in self._wrapped:
            self._wrapped[key] = function, self._wrap(function)
        return self._wrapped[key][1]

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        hints = resolved_hints(function)
        ours = {name: self._with_wrapped_resolver(hint) for name, hint in hints.items()}
        if is_async(function) and ours == hints:
            return function

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.call(function, *args, **kwargs)

        declare(call, signature_with(function, ours))
        return call

    def _with_wrapped_resolver(self, hint: Any) -> Any:
        if get_origin(hint) is not Annotated:
            return hint
        kind, *metadata = get_args(hint)
        if not any(isinstance(item, Resolve) for item in metadata):
            return hint
        ours = [Resolve(self.wrap(item.fn)) if isinstance(item, Resolve) else item for item in metadata]
        return Annotated[kind, *ours]


class InPool(DatabaseSyncToAsync):  # type: ignore[misc] # channels.db has no types
    """``database_sync_to_async`` whose connections, kept from an earlier call, are checked when first used.

    Django notices that the database ended a kept connection (``CONN_MAX_AGE``) only when a query fails, unless
    ``CONN_HEALTH_CHECKS`` is on. A failed request is repeated by a browser's user; a failed tool call is not.
    """

    def thread_handler(self, *args: Any, **kwargs: Any) -> Any:
        for connection in connections.all(initialized_only=True):
            connection.health_check_enabled = True  # type: ignore[attr-defined] # not in django-stubs
        return super().thread_handler(*args, **kwargs)


def _in_thread(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` as it runs in a thread for the event loop."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with current_request.updated(holds_a_thread=True):
                return function(*args, **kwargs)
        except StopIteration as error:  # which no future can hold: its caller would wait for ever
            raise RuntimeError("The function raised StopIteration.") from error

    return run


def _atomic(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` in a transaction of each database with ``ATOMIC_REQUESTS``, as Django has a view.

    ``transaction.non_atomic_requests`` takes it out, as it does a view.
    """
    exempt = not_atomic(function)
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and alias not in exempt:
            function = transaction.atomic(using=alias)(function)
    return function


def not_atomic(function: Callable[..., Any]) -> set[str]:
    """The databases that ``transaction.non_atomic_requests`` names, on a partial or on the function in it."""
    named: set[str] = set(getattr(function, "_non_atomic_requests", ()))
    return named | not_atomic(function.func) if isinstance(function, functools.partial) else named


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def resolved_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints with their metadata; none where one of them cannot be resolved at run time."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that is imported for type checkers only: the SDK is as tolerant
        return {}


def signature_with(function: Callable[..., Any], hints: dict[str, Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    returns = hints.get("return", signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returns)


def declare(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Make ``function`` look as if it had been written with this signature."""
    function.__signature__ = signature  # type: ignore[attr-defined]
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    hints["return"] = signature.return_annotation
    function.__annotations__ = {name: hint for name, hint in hints.items() if hint is not inspect.Parameter.empty}


@asynccontextmanager
async def thread_of_its_own() -> AsyncIterator[None]:
    """Give the async ORM a thread for this call alone: a slow query of another call does not hold it up."""
    if current_request.get().in_callers_thread:
        yield
        return
    thread = _LazyThread()
    try:
        async with ThreadSensitiveContext(executor=thread):
            yield
    finally:
        thread.end()


class _LazyThread(Executor):
    """An executor of one thread that starts with the first thing it is given."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="mcp-serving-call")
        return self._thread.submit(fn, *args, **kwargs)

    def end(self) -> None:
        """Close the connections of the thread and end it, without waiting for what it still does."""
        if self._thread is not None:
            self._thread.submit(connections.close_all)
            self._thread.shutdown(wait=False)
