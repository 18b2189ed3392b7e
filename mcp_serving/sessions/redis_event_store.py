"""The event store in Redis, for several workers."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_serving.channel_layer import LayerHealth
from mcp_serving.sessions.bounded_event_store import MIB, BoundedEventStore, check_integer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from redis.asyncio import Redis

T = TypeVar("T")


class RedisEventStore(BoundedEventStore):
    """An event store in Redis, for a handler in several workers: events outlive the worker that sent them.

    The limits apply to each session. When a limit is exceeded, the oldest events are deleted. A session is one stream
    in Redis. It is deleted when the client ends the session, and ``max_age`` seconds after its last event.

    While Redis does not answer, calls are still answered, but streams cannot be resumed. One event in two seconds then
    takes ``timeout``, and one line is logged.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, in redis-py's format. Redis 6.2 or later is needed.
        max_events: how many events are stored.
        max_age: seconds for which an event is stored.
        max_bytes: bytes of the stored messages, as JSON. A larger result is replaced by an error, which the client
            gets when it resumes.
        prefix: the beginning of all keys in Redis.
        timeout: seconds that Redis may take for one event, including the connection.
        max_connections: connections of one worker, at the most.

    Raises:
        ImportError: the package redis is missing.
        ValueError: the URL is invalid, or a limit is not a positive number, or too small.

    Example:
        >>> events = RedisEventStore("redis://127.0.0.1:6379/1")
        >>> mcp_handler = StreamableHTTPHandler(server, login_required=True, event_store=events)
    """

    def __init__(
        self,
        url: str,
        *,
        max_events: int = 1000,
        max_age: float = 600.0,
        max_bytes: int = 4 * MIB,
        prefix: str = "mcp_serving:events:",
        timeout: float = 1.0,
        max_connections: int = 20,
    ) -> None:
        super().__init__(max_events, max_age, max_bytes)
        check_integer("max_connections", max_connections, least=1)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout!r}; it must be a finite number of seconds above 0.")
        try:
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ImportError(
                "RedisEventStore needs the package redis. Install it with: pip install 'mcp-serving[redis]'"
            ) from error
        self._connect = _connector(url, timeout)
        self._max_connections = max_connections
        self._errors = (RedisError, OSError)
        self._timeout = timeout
        self._prefix = prefix
        self._clients: dict[asyncio.AbstractEventLoop, tuple[Redis, asyncio.Semaphore]] = {}
        self._health = LayerHealth(pause=_PAUSE)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next event opens them again."""
        if (connected := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await connected[0].aclose()

    async def _add(self, session: str, stream: str, text: bytes) -> str:
        bounds = (self._max_events, int(self._max_age * 1000) or 1, self._max_bytes)

        async def add(redis: Redis) -> Any:
            added: Any = redis.eval(_ADD, 1, self._prefix + session, stream, text, *bounds)
            return await added  # redis-py declares one type for its sync and async clients

        return str(await self._run(add), "ascii")

    async def _latest(self, session: str) -> str:
        async def latest(redis: Redis) -> Any:
            position: Any = redis.eval(_LATEST, 1, self._prefix + session)
            return await position

        return str(await self._run(latest), "ascii")

    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        async def after(redis: Redis) -> Any:
            async with redis.pipeline(transaction=False) as pipeline:
                pipeline.time()
                pipeline.xrange(self._prefix + session, min=f"({position}")
                return await pipeline.execute()

        (seconds, microseconds), entries = await self._run(after)
        oldest = seconds * 1000 + microseconds // 1000 - self._max_age * 1000
        stored = ((each.decode(), values) for each, values in entries)
        return [
            (each, values[b"text"])
            for each, values in stored
            if values[b"stream"] == stream.encode() and int(each.partition("-")[0]) >= oldest
        ]

    async def _delete(self, session: str) -> None:
        async def delete(redis: Redis) -> Any:
            return await redis.delete(self._prefix + session)

        await self._run(delete)

    async def _run(self, command: Callable[[Redis], Awaitable[T]]) -> T:
        """The result of a command.

        During an outage, one event in two seconds tries to reach Redis. The others fail at once.

        Raises:
            ConnectionError: Redis did not answer in time.
        """
        redis, free_connection = self._connected()
        async with free_connection:
            if not self._health.may_try():
                raise self._unavailable()
            try:
                async with asyncio.timeout(self._timeout):
                    result = await command(redis)
            except self._errors as error:
                self._health.record_failure(error)
                raise self._unavailable() from error
            self._health.record_success()
            return result

    def _unavailable(self) -> ConnectionError:
        return ConnectionError(f"Redis does not answer: {self._health.reason}")

    def _connected(self) -> tuple[Redis, asyncio.Semaphore]:
        """The client of the running event loop, and a semaphore for its connections, which belong to the loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {each: client for each, client in self._clients.items() if not each.is_closed()}
            self._clients[loop] = (self._connect(), asyncio.Semaphore(self._max_connections))
        return self._clients[loop]


def _connector(url: str, timeout: float) -> Callable[[], Redis]:
    """A function that makes a client with a pool of connections.

    Raises:
        ValueError: the URL is invalid.
    """
    from redis.asyncio import ConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as Disconnected

    def connect() -> Redis:
        # One retry, for an idle connection that Redis has closed. More retries would keep other events waiting.
        pool = ConnectionPool.from_url(
            url,
            socket_connect_timeout=timeout,
            socket_timeout=timeout,
            retry=Retry(NoBackoff(), 1, supported_errors=(Disconnected,)),
            retry_on_error=[Disconnected],
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # checks the options in the URL
        return Redis.from_pool(pool)

    try:
        connect()
    except (ValueError, TypeError, AttributeError):
        # The text of the original error may contain the password: a slash in it makes the rest look like a port.
        raise ValueError(
            "The URL of the RedisEventStore is invalid. It must be like redis://127.0.0.1:6379/0, rediss://... or "
            "unix://..., with special characters of the password percent-encoded."
        ) from None
    return connect


_PAUSE = 2.0
"""Seconds between two attempts to reach Redis during an outage."""

_ADD = """
local key, most, age, bytes = KEYS[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local latest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
-- "before": the bytes of all texts before this one, including deleted ones
local before = latest and tonumber(latest[2][6]) + #latest[2][4] or 0
local id = redis.call('XADD', key, 'MAXLEN', most, '*', 'stream', ARGV[1], 'text', ARGV[2], 'before', before)
redis.call('XTRIM', key, 'MINID', tonumber(string.match(id, '^%d+')) - age)
local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
while before + #ARGV[2] - tonumber(oldest[2][6]) > bytes do
    redis.call('XDEL', key, oldest[1])
    oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
end
redis.call('PEXPIRE', key, age)
return id
"""
"""Add one event and delete those beyond the limits, in one step, with the clock of Redis."""

_LATEST = """
local latest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return latest and latest[1] or '0-0'
"""
"""The position of the latest event without its text, which XREVRANGE would send, too."""
