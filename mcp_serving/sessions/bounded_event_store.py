"""The base class of both event stores: the current session, the limits, the ids and the texts of events."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from mcp.server.streamable_http import EventMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from mcp_serving import current_request
from mcp_serving.sessions.resumable_events import ScopedEventStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp.server.streamable_http import EventCallback
    from mcp_types import JSONRPCMessage

MIB = 1024 * 1024


class BoundedEventStore(ScopedEventStore):
    """An event store with limits for each session.

    The id of an event is its position among the events of its session, and its stream. So a client that resumes after
    an event which was deleted still gets the newer events.
    """

    def __init__(self, max_events: int, max_age: float, max_bytes: int) -> None:
        check_integer("max_events", max_events, least=1)
        check_integer("max_bytes", max_bytes, least=1024)  # room for the error that replaces a result that is too large
        if isinstance(max_age, bool) or not isinstance(max_age, int | float) or not 0 < max_age < 1e9:
            raise ValueError(f"max_age is {max_age!r}; it must be a number of seconds above 0 and below 1e9.")
        self._max_events = max_events
        self._max_age = max_age
        self._max_bytes = max_bytes

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        session = self._session()
        stream = quote(stream_id.removeprefix(f"{session}:"), safe="")
        text = None if message is None else self._text(message)
        # The event at the beginning of a stream is only a position; there is nothing to store.
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
        await self._delete(self._session())

    def _session(self) -> str:
        if session := current_request.get().session_nonce:
            return session
        raise RuntimeError(
            f"{type(self).__name__} works only as the event_store of mcp_serving.StreamableHTTPHandler, "
            "which tells it the session of each event."
        )

    def _text(self, message: JSONRPCMessage) -> bytes | None:
        """The message as JSON; None if it is too large to be stored."""
        text = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if len(text) <= self._max_bytes:
            return text
        if not isinstance(message, JSONRPCResponse):
            return None
        # Without an error, its client would wait for the result for ever.
        error = ErrorData(code=INTERNAL_ERROR, message="The result was too large to be stored until you came back.")
        return self._text(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))

    @abstractmethod
    async def _add(self, session: str, stream: str, text: bytes) -> str:
        """Store an event; returns its position."""

    @abstractmethod
    async def _latest(self, session: str) -> str:
        """The position of the latest event that is stored, or a position before all events that are still to come."""

    @abstractmethod
    async def _after(self, session: str, position: str, stream: str) -> Iterable[tuple[str, bytes]]:
        """The positions and texts of the events of one stream after a position."""

    @abstractmethod
    async def _delete(self, session: str) -> None: ...


def check_integer(name: str, value: object, *, least: int) -> None:
    """Check the value of an option.

    Raises:
        ValueError: the value is not an integer of at least ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}.")
