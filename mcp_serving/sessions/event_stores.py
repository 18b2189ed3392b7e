"""Event stores that keep what a client may have missed: a session's own events, so many and so long."""

from __future__ import annotations

import asyncio
import math
import re
import time
from abc import abstractmethod
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from mcp.server.streamable_http import EventMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from mcp_serving import current_request
from mcp_serving.channel_layer import LayerHealth
from mcp_serving.sessions.resumable_events import ScopedEventStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp.server.streamable_http import EventCallback
    from mcp_types import JSONRPCMessage
    from redis.asyncio import Redis

T = TypeVar("T")

MIB = 1024 * 1024


class BoundedEventStore(ScopedEventStore):
    """What the stores have in common: the session at hand, the bounds, the ids and the texts of events.

    The id of an event is its position among the events of its session, and its stream: so that who resumes after an
    event that is no longer kept gets the newer ones all the same, and then what is still to come.
    """

    def __init__(self, max_events: int, max_age: float, max_bytes: int) -> None:
        _whole("max_events", max_events, least=1)
        _whole("max_bytes", max_bytes, least=1024)  # An error has to fit in, in place of a result that does not.
        if isinstance(max_age, bool) or not isinstance(max_age, int | float) or not 0 < max_age < 1e9:
            raise ValueError(f"max_age is {max_age!r}; it has to be a number of seconds above 0, below 1e9.")
        self._max_events = max_events
        self._max_age = max_age
        self._max_bytes = max_bytes

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        session = self._session()
        stream = quote(stream_id.removeprefix(f"{session}:"), safe="")
        text = None if message is None else self._text(message)
        # What begins a stream is a position, and nothing to keep.
        position = await (self._latest(session) if text is None else self._add(session, stream, text))
        return f"{position}:{stream}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        session = self._session()
        position, _, stream = last_event_id.partition(":")
        if not stream or not re.fullmatch(r"\d{1,19}(-\d{1,19})?", position, re.ASCII):
            return None
        for each, text in await self._after(session, position, stream):
            message = jsonrpc_message_adapter.validate_json(text, by_name=False)
            await send_callback(EventMessage(message, f"{each}:{stream}"))
        return f"{session}:{unquote(stream)}"

    async def forget(self) -> None:
        await self._drop(self._session())

    def _session(self) -> str:
        if session := current_request.get().session_nonce:
            return session
        raise RuntimeError(
            f"{type(self).__name__} is for the event_store of mcp_serving.StreamableHTTPHandler: "
            "nothing else says which session an event belongs to."
        )

    def _text(self, message: JSONRPCMessage) -> bytes | None:
        """The message as JSON; None where it is too large to be kept."""
        text = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if len(text) <= self._max_bytes:
            return text
        if not isinstance(message, JSONRPCResponse):
            return None
        # Its client would wait for ever.
        error = ErrorData(code=INTERNAL_ERROR, message="The result was too large to be kept until you came back.")
        return self._text(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))

    @abstractmethod
    async def _add(self, session: str, stream: str, text: bytes) -> str:
        """The position of a new event."""

    @abstractmethod
    async def _latest(self, session: str) -> str:
        """The position of the latest event that is kept, or one before all that are to come."""

    @abstractmethod
    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        """The positions and texts of the events of one stream after a position."""

    @abstractmethod
    async def _drop(self, session: str) -> None: ...


class InMemoryEventStore(BoundedEventStore):
    """An event store for a handler of one process, in its memory: a client that was cut off gets what it missed.

    The bounds are for each session; what exceeds one of them is dropped, the oldest first. Events go when their
    session is ended by its client, and with the process.

    Args:
        max_events: how many are kept.
        max_age: seconds for which one is kept.
        max_bytes: of the messages that are kept, as JSON. A result that is larger by itself is not kept: its client,
            when it resumes, gets an error in its place.
        max_total_bytes: about what the events of all sessions may take together.

    Raises:
        ValueError: a bound is none.

    Example:
        >>> mcp_handler = StreamableHTTPHandler(server, login_required=True, event_store=InMemoryEventStore())
    """

    def __init__(
        self,
        *,
        max_events: int = 1000,
        max_age: float = 600.0,
        max_bytes: int = 4 * MIB,
        max_total_bytes: int = 64 * MIB,
    ) -> None:
        super().__init__(max_events, max_age, max_bytes)
        _whole("max_total_bytes", max_total_bytes, least=max_bytes)
        self._max_total = max_total_bytes
        self._events: OrderedDict[int, _Event] = OrderedDict()
        """All of them, in the order in which they came."""
        self._sessions: dict[str, _Kept] = {}
        self._position = 0
        self._size = 0
        self._cleaning_in: asyncio.AbstractEventLoop | None = None

    async def _add(self, session: str, stream: str, text: bytes) -> str:
        self._position += 1
        event = self._events[self._position] = _Event(session, stream, text)
        if (kept := self._sessions.get(session)) is None:
            kept = self._sessions[session] = _Kept()
            self._size += _COST_OF_A_SESSION
        kept.positions.append(self._position)
        kept.size += len(text)
        self._size += event.size
        while len(kept.positions) > self._max_events or kept.size > self._max_bytes:
            self._remove(kept.positions[0])
        while self._size > self._max_total:
            self._remove(next(iter(self._events)))
        if self._cleaning_in is not (loop := asyncio.get_running_loop()):
            self._clean(loop)
        return str(self._position)

    async def aclose(self) -> None:
        """Its events stay: they belong to no event loop."""

    async def _latest(self, session: str) -> str:
        return str(self._position)

    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        kept = self._sessions.get(session, _Kept())
        later = [(each, self._events[each]) for each in kept.positions if each > int(position.partition("-")[0])]
        return [(str(each), event.text) for each, event in later if event.stream == stream and not self._is_old(event)]

    async def _drop(self, session: str) -> None:
        while session in self._sessions:
            self._remove(self._sessions[session].positions[0])

    def _remove(self, position: int) -> None:
        """The oldest event of its session."""
        event = self._events.pop(position)
        kept = self._sessions[event.session]
        kept.positions.popleft()
        kept.size -= len(event.text)
        self._size -= event.size
        if not kept.positions:
            del self._sessions[event.session]
            self._size -= _COST_OF_A_SESSION

    def _is_old(self, event: _Event) -> bool:
        return time.monotonic() - event.stored > self._max_age

    def _clean(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove what is too old, now and whenever something will be, whether or not a session is used again."""
        while self._events and self._is_old(oldest := next(iter(self._events.values()))):
            self._remove(next(iter(self._events)))
        if self._events:
            self._cleaning_in = loop
            loop.call_later(oldest.stored + self._max_age - time.monotonic() + 0.001, self._clean, loop)
        else:
            self._cleaning_in = None


@dataclass(frozen=True, slots=True)
class _Event:
    session: str
    stream: str
    text: bytes
    stored: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return len(self.text) + len(self.stream) + _COST_OF_AN_EVENT


@dataclass(slots=True)
class _Kept:
    """What there is of one session."""

    positions: deque[int] = field(default_factory=deque)
    size: int = 0


_COST_OF_AN_EVENT, _COST_OF_A_SESSION = 300, 850
"""Bytes that Python needs for one, beside the text, as measured."""


class RedisEventStore(BoundedEventStore):
    """An event store in Redis, for a handler of several workers: what a client missed outlives the worker.

    The bounds are for each session; what exceeds one of them is dropped, the oldest first. A session is one stream
    in Redis, which goes when its client ends it, and by itself ``max_age`` seconds after its last event.

    While Redis is away, answers are sent as ever, and cannot be resumed after: it costs no more than ``timeout``
    every now and then, and one line of the log.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py has it. It takes Redis 6.2 or later.
        max_events: how many are kept.
        max_age: seconds for which one is kept.
        max_bytes: of the messages that are kept, as JSON. A result that is larger by itself is not kept: its client,
            when it resumes, gets an error in its place.
        prefix: what the keys in Redis begin with.
        timeout: seconds that Redis may take for one event, connecting included.
        max_connections: how many a worker has at most.

    Raises:
        ImportError: the package redis is missing.
        ValueError: the url or a bound is none.

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
        _whole("max_connections", max_connections, least=1)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout!r}; it has to be a number of seconds above 0.")
        try:
            from redis.asyncio import ConnectionPool, Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Disconnected
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ImportError("RedisEventStore needs the package redis: pip install 'mcp-serving[redis]'") from error

        def connect() -> Redis:
            # Once more for a connection that was cut while nobody used it, and no more than that: others wait.
            pool = ConnectionPool.from_url(
                url,
                socket_connect_timeout=timeout,
                socket_timeout=timeout,
                retry=Retry(NoBackoff(), 1, supported_errors=(Disconnected,)),
                retry_on_error=[Disconnected],
            )
            pool.make_connection()  # type: ignore[no-untyped-call]  # which reads the options that are in the url
            return Redis.from_pool(pool)

        try:
            connect()
        except (ValueError, TypeError, AttributeError):
            # Its text may have a part of the password: one with a slash in it is taken for a port.
            raise ValueError(
                "The url of a RedisEventStore has to be like redis://127.0.0.1:6379/0, rediss://... or unix://..., "
                "special characters of a password percent-encoded."
            ) from None
        self._connect = connect
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
            asked: Any = redis.eval(_ADD, 1, self._prefix + session, stream, text, *bounds)
            return await asked  # declared as what it would be for a client that is not async, too

        return str(await self._ask(add), "ascii")

    async def _latest(self, session: str) -> str:
        async def latest(redis: Redis) -> Any:
            asked: Any = redis.eval(_LATEST, 1, self._prefix + session)
            return await asked

        return str(await self._ask(latest), "ascii")

    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        async def after(redis: Redis) -> Any:
            async with redis.pipeline(transaction=False) as asked:
                asked.time()
                asked.xrange(self._prefix + session, min=f"({position}")
                return await asked.execute()

        (seconds, microseconds), entries = await self._ask(after)
        oldest = seconds * 1000 + microseconds // 1000 - self._max_age * 1000
        kept = ((each.decode(), values) for each, values in entries)
        return [
            (each, values[b"text"])
            for each, values in kept
            if values[b"stream"] == stream.encode() and int(each.partition("-")[0]) >= oldest
        ]

    async def _drop(self, session: str) -> None:
        async def drop(redis: Redis) -> Any:
            return await redis.delete(self._prefix + session)

        await self._ask(drop)

    async def _ask(self, question: Callable[[Redis], Awaitable[T]]) -> T:
        """Redis's answer, in time.

        A Redis that is away is asked again once in a while, by one event: the others do not wait for it.

        Raises:
            ConnectionError: there is none.
        """
        redis, free_connection = self._connected()
        async with free_connection:
            if not self._health.may_try():
                raise self._unavailable()
            try:
                async with asyncio.timeout(self._timeout):
                    answer = await question(redis)
            except self._errors as error:
                self._health.record_failure(error)
                raise self._unavailable() from error
            self._health.record_success()
            return answer

    def _unavailable(self) -> ConnectionError:
        return ConnectionError(f"Redis does not answer: {self._health.reason}")

    def _connected(self) -> tuple[Redis, asyncio.Semaphore]:
        """The client of the running event loop, to which its connections are bound; and so many of these."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients = {each: client for each, client in self._clients.items() if not each.is_closed()}
            self._clients[loop] = (self._connect(), asyncio.Semaphore(self._max_connections))
        return self._clients[loop]


_PAUSE = 2.0
"""Seconds."""

_ADD = """
local key, most, age, bytes = KEYS[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local latest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
-- "before": the bytes of all texts that came before this one, kept or not
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
"""Add one event, and drop what is beyond the bounds: all in one step, by Redis's own clock."""

_LATEST = """
local latest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return latest and latest[1] or '0-0'
"""
"""The position alone, without the text that XREVRANGE would send along."""


def _whole(name: str, bound: object, *, least: int) -> None:
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < least:
        raise ValueError(f"{name} is {bound!r}; it has to be a whole number from {least} on.")
