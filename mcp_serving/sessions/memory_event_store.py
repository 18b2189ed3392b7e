"""The event store in the memory of one process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_serving.sessions.bounded_event_store import MIB, BoundedEventStore, check_integer

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVENT_OVERHEAD, _SESSION_OVERHEAD = 300, 850
"""Measured bytes that Python needs for an event and for a session, besides the text."""


class InMemoryEventStore(BoundedEventStore):
    """An event store in memory, for a handler in one process: a client that lost its connection gets what it missed.

    The limits apply to each session. When a limit is exceeded, the oldest events are deleted. Events are also deleted
    when the client ends the session, and when the process ends.

    Args:
        max_events: how many events are stored.
        max_age: seconds for which an event is stored.
        max_bytes: bytes of the stored messages, as JSON. A larger result is replaced by an error, which the client
            gets when it resumes.
        max_total_bytes: bytes of memory for the events of all sessions together, approximately.

    Raises:
        ValueError: a limit is not a positive number, or too small.

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
        check_integer("max_total_bytes", max_total_bytes, least=max_bytes)
        self._max_total = max_total_bytes
        self._events: OrderedDict[int, _Event] = OrderedDict()
        """The events of all sessions, oldest first."""
        self._sessions: dict[str, _Session] = {}
        self._position = 0
        self._size = 0
        self._cleaning_loop: asyncio.AbstractEventLoop | None = None

    async def _add(self, session: str, stream: str, text: bytes) -> str:
        self._position += 1
        event = self._events[self._position] = _Event(session, stream, text)
        if (stored := self._sessions.get(session)) is None:
            stored = self._sessions[session] = _Session()
            self._size += _SESSION_OVERHEAD
        stored.positions.append(self._position)
        stored.size += len(text)
        self._size += event.size
        while len(stored.positions) > self._max_events or stored.size > self._max_bytes:
            self._remove(stored.positions[0])
        while self._size > self._max_total:
            self._remove(next(iter(self._events)))
        if self._cleaning_loop is not (loop := asyncio.get_running_loop()):
            self._clean(loop)
        return str(self._position)

    async def aclose(self) -> None:
        """Nothing to release: the events belong to no event loop, and stay."""

    async def _latest(self, session: str) -> str:
        return str(self._position)

    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        stored = self._sessions.get(session, _Session())
        later = [(each, self._events[each]) for each in stored.positions if each > int(position.partition("-")[0])]
        return [(str(each), event.text) for each, event in later if event.stream == stream and not self._is_old(event)]

    async def _delete(self, session: str) -> None:
        while session in self._sessions:
            self._remove(self._sessions[session].positions[0])

    def _remove(self, position: int) -> None:
        """Remove an event, which is the oldest one of its session."""
        event = self._events.pop(position)
        stored = self._sessions[event.session]
        stored.positions.popleft()
        stored.size -= len(event.text)
        self._size -= event.size
        if not stored.positions:
            del self._sessions[event.session]
            self._size -= _SESSION_OVERHEAD

    def _is_old(self, event: _Event) -> bool:
        return time.monotonic() - event.stored > self._max_age

    def _clean(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove old events now, and again when the next event becomes old, even if its session is not used again."""
        while self._events and self._is_old(oldest := next(iter(self._events.values()))):
            self._remove(next(iter(self._events)))
        if self._events:
            self._cleaning_loop = loop
            loop.call_later(oldest.stored + self._max_age - time.monotonic() + 0.001, self._clean, loop)
        else:
            self._cleaning_loop = None


@dataclass(frozen=True, slots=True)
class _Event:
    session: str
    stream: str
    text: bytes
    stored: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return len(self.text) + len(self.stream) + _EVENT_OVERHEAD


@dataclass(slots=True)
class _Session:
    positions: deque[int] = field(default_factory=deque)
    size: int = 0
