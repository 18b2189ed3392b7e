"""The events of a session, which its client may resume after: its own, whatever store keeps them."""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from django.core.signing import BadSignature, Signer
from mcp.server.streamable_http import EventStore
from mcp_types import JSONRPCError, JSONRPCResponse

from mcp_serving import current_request
from mcp_serving.channel_layer import LayerHealth

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventMessage
    from mcp_types import JSONRPCMessage

logger = logging.getLogger(__name__)

_LONGEST_STREAM_ID = 256
"""Characters. A stream has the id of its request, which is a client's to choose, and each of its events repeats it."""


class ScopedEventStore(EventStore):
    """A store that keeps the events of each session apart, by the ``session_nonce`` of the current request."""

    @abstractmethod
    async def forget(self) -> None:
        """Drop the events of the session at hand, which is over."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give back what it holds of the running event loop; the next event takes it again."""


class SessionEvents(EventStore):
    """An event store in which each session has events of its own, whatever store is underneath.

    The SDK tells a store the id of a request and no session: "1" in all of them. Without this, who resumes
    would be sent what others have missed.

    A store that fails costs the resuming and no answer: an event that it does not take is sent without an id, and a
    replay that it does not give ends at once, so that its client tries again.

    Args:
        store: keeps the events of all sessions.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._storing = LayerHealth(
            "Events are not stored, so that clients cannot resume streams after them (%s).", "Events are stored again."
        )
        self._reading = LayerHealth(
            "Stored events cannot be read, so that clients cannot resume streams (%s).",
            "Stored events can be read again.",
        )

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        if message is None and (event_id := current_request.get().replayed_up_to):
            # A resumed stream begins where its replay has ended. After what has been stored since, its client would
            # never get that: neither from this stream, nor by resuming again.
            current_request.update(replayed_up_to="")
            return event_id
        if len(stream_id) > _LONGEST_STREAM_ID:
            return ""
        try:
            event_id = await self._store.store_event(f"{current_request.get().session_nonce}:{stream_id}", message)
        except Exception as error:
            # Raised into the SDK, it would end what delivers the answers of the session, all that are still to come.
            _record_failure(self._storing, error)
            return ""
        self._storing.record_success()
        return self._signer.sign(event_id)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        try:
            left, stream_id = await self.left_after(last_event_id)
        except Exception:  # which is logged; raised into the SDK, it would be once more, for each attempt of a client
            return None
        for event in left:
            await send_callback(event)
        if any(_is_answer(event.message) for event in left):
            return None  # The stream ends: nothing follows an answer.
        last_sent = next((event.event_id for event in reversed(left) if event.event_id), last_event_id)
        current_request.update(replayed_up_to=last_sent)
        return stream_id

    async def left_after(self, last_event_id: str) -> tuple[list[EventMessage], str | None]:
        """What a client would be sent that resumes after this event, and its stream; None where that is unknown.

        Raises:
            Exception: the store's; it has been logged.
        """
        left: list[EventMessage] = []

        async def keep(event: EventMessage) -> None:
            left.append(replace(event, event_id=event.event_id and self._signer.sign(event.event_id)))

        try:
            event_id = self._signer.unsign(last_event_id)
        except BadSignature:
            return [], None
        try:
            stream_id = await self._store.replay_events_after(event_id, keep)
        except Exception as error:
            _record_failure(self._reading, error)
            raise
        self._reading.record_success()
        return left, None if stream_id is None else stream_id.partition(":")[2]

    async def forget(self) -> None:
        """Drop the events of the session at hand, if the store can: its client has ended it."""
        if isinstance(self._store, ScopedEventStore):
            with suppress(OSError):  # They go by their age too.
                await self._store.forget()

    async def aclose(self) -> None:
        """Give back what the store holds of the running event loop."""
        if isinstance(self._store, ScopedEventStore):
            await self._store.aclose()

    @property
    def _signer(self) -> Signer:
        return Signer(salt=f"mcp_serving.event:{current_request.get().session_nonce}")


def _record_failure(health: LayerHealth, error: Exception) -> None:
    if health.available and not isinstance(error, OSError):  # a bug in a store of the project, rather than an outage
        logger.error("The event store raised an exception.", exc_info=error)
    health.record_failure(error)


def _is_answer(message: JSONRPCMessage) -> bool:
    return isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
