"""Where calls are counted: in the memory of the process, or in a storage of the library ``limits``, such as Redis.

Calls are counted in fixed windows. The window of a caller starts with the caller's first call. So the end of the window
is known exactly. A caller who waits until then is served. Each caller needs one number.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from django.core.exceptions import ImproperlyConfigured

from mcp_serving import conf
from mcp_serving.channel_layer import LayerHealth
from mcp_serving.loading import in_one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_serving.rate_limits.rate import Rate

MOST_KEYS = 100_000
"""Callers that have a window in memory. They need about 20 MB. The oldest window is removed for a new caller."""

TIMEOUT = 1.0
"""Seconds that a call waits for the storage."""


class Storage(Protocol):
    """Counts calls."""

    async def hit(self, key: str, rate: Rate) -> float | None:
        """Count a call; None if it is within the rate, otherwise the seconds until the next window."""


class MemoryStorage:
    """Counts the calls of this process.

    The storage ``async+memory`` of ``limits`` is not used: it has no limit, and looks at all keys with each call.
    """

    def __init__(self) -> None:
        self._windows: dict[str, tuple[float, int]] = {}
        """The end of each window, and its number of calls. The window that started first comes first."""
        self._lock = threading.Lock()

    async def hit(self, key: str, rate: Rate) -> float | None:
        now = time.monotonic()
        with self._lock:  # event loops in several threads share it
            end, calls = self._windows.get(key, (now, 0))
            if end <= now:
                self._windows.pop(key, None)
                if len(self._windows) >= MOST_KEYS:
                    del self._windows[next(iter(self._windows))]
                end, calls = now + rate.seconds, 0
            self._windows[key] = end, calls + 1
        return None if calls < rate.calls else end - now

    def forget(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._windows.clear()


class LimitsStorage:
    """Counts calls in a storage of ``limits``, for one event loop.

    Args:
        uri: the URI of the storage.

    Raises:
        Exception: the library, or the client of the storage, is not installed, or does not accept the URI.
    """

    def __init__(self, uri: str) -> None:
        from limits import RateLimitItemPerSecond
        from limits.aio.storage import Storage as AsyncStorage
        from limits.aio.strategies import FixedWindowRateLimiter
        from limits.storage import storage_from_string

        options = {"implementation": "redispy"} if "redis" in uri.partition("://")[0] else {}
        storage = storage_from_string(f"async+{uri}", **options)
        assert isinstance(storage, AsyncStorage)
        self._storage: Any = storage
        self._limiter = FixedWindowRateLimiter(storage)
        self._item = RateLimitItemPerSecond

    async def hit(self, key: str, rate: Rate) -> float | None:
        item = self._item(rate.calls, rate.seconds, namespace="mcp_serving")
        if await self._limiter.hit(item, key):
            return None
        window = await self._limiter.get_window_stats(item, key)
        return window.reset_time - time.time()

    async def close(self) -> None:
        """Close the connections."""
        client = getattr(getattr(self._storage, "bridge", None), "storage", None)  # of Redis
        if client is not None:
            await client.aclose()


health = LayerHealth(
    "The storage of the rate limits cannot be used (%s). Until it can, calls with a rate pass, or are refused if "
    "MCP_SERVING['RATE_LIMIT_ON_OUTAGE'] is 'refuse'.",
    "The storage of the rate limits can be used again.",
    pause=1.0,
)
"""Whether the storage that the setting names is available."""

memory = MemoryStorage()
"""The counts of this process."""

_storages: dict[asyncio.AbstractEventLoop, LimitsStorage] = {}
"""The storage of each event loop: its connections belong to the loop."""


def uses_memory() -> bool:
    """Whether the calls of each process are counted separately."""
    return conf.configuration().rate_limit_storage.startswith("memory:")


def problem() -> str | None:
    """Why the storage cannot be made, in one line; None if it can be made. Whether it answers is not checked."""
    if uses_memory():
        return None
    uri = conf.configuration().rate_limit_storage
    scheme = uri.partition("://")[0]  # the rest may have a password
    try:
        LimitsStorage(uri)
    except ImportError as error:
        missing = "limits" if (error.name or "").partition(".")[0] == "limits" else in_one_line(error)
        return f"MCP_SERVING['RATE_LIMIT_STORAGE'] needs {missing}: install it with pip install 'mcp-serving[limits]'."
    except Exception as error:  # the client of a storage may raise anything
        cause = in_one_line(error).replace(uri, f"{scheme}://...")
        return f"MCP_SERVING['RATE_LIMIT_STORAGE'] names a storage {scheme!r} that cannot be made: {cause}."
    return None


def check() -> None:
    """Check that the storage can be made, before the first call needs it.

    Raises:
        ImproperlyConfigured: says what is missing or wrong.
    """
    if found := problem():
        raise ImproperlyConfigured(found)


async def hit(key: str, rate: Rate) -> float | None:
    """Count a call in the storage that the setting names; see ``Storage.hit``.

    Raises:
        ConnectionError: the storage is not available.
    """
    if uses_memory():
        return await memory.hit(key, rate)
    if not health.may_try():
        raise ConnectionError(health.reason)
    try:
        async with asyncio.timeout(TIMEOUT):
            wait = await _of_this_loop().hit(key, rate)
    except Exception as error:
        health.record_failure(error)
        raise ConnectionError(health.reason) from error
    health.record_success()
    return wait


def _of_this_loop() -> LimitsStorage:
    loop = asyncio.get_running_loop()
    found = _storages.get(loop)
    if found is None:
        for other in list(_storages):
            if other.is_closed():
                _storages.pop(other, None)
        found = _storages[loop] = LimitsStorage(conf.configuration().rate_limit_storage)
    return found


@asynccontextmanager
async def closed_afterwards() -> AsyncIterator[None]:
    """Close the connections of the running event loop at the end of the block."""
    try:
        yield
    finally:
        if (found := _storages.pop(asyncio.get_running_loop(), None)) is not None:
            await found.close()
