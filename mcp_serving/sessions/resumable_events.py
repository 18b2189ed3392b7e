"""The resumable events of each session: after a lost connection, its client resumes the stream from the last one."""

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
    from collections.abc import Callable

    from mcp.server.streamable_http import EventCallback, EventMessage
    from mcp_types import JSONRPCMessage

logger = logging.getLogger(__name__)

_MAX_STREAM_ID = 256
"""Characters. A stream has the id of its request, which the client chooses, and each event contains it."""


class ScopedEventStore(EventStore):
    """A store that keeps the events of each session apart, by the ``session_nonce`` of the current request."""

    @abstractmethod
    async def forget(self) -> None:
        """Delete the events of the current session, which has ended."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release the resources that belong to the running event loop. The next event acquires them again."""


class SessionEvents(EventStore):
    """An event store that gives each session events of its own, over any other event store.

    The SDK passes only the id of a request to a store, which is "1" in most sessions. Without this class, a client
    that resumes a stream would get the events of other sessions.

    A failing store stops neither answers nor streams. An event that cannot be stored is sent without an id. A replay
    that fails ends at once, so that its client tries again.

    Args:
        store: keeps the events of all sessions.
    """

    def __init__(self, store: EventStore) -> None:
        self.on_response: Callable[[str, str], None] | None = None
        """Is called with the session's nonce and the request's id when a response has been stored."""
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
            # A resumed stream begins with the id of the last event that it replayed. With the id of a newer event, its
            # client would never get the events between the two.
            current_request.update(replayed_up_to="")
            return event_id
        event_id = "" if len(stream_id) > _MAX_STREAM_ID else await self._store_event(stream_id, message)
        if self.on_response is not None and message is not None and _is_answer(message):
            self.on_response(current_request.get().session_nonce, stream_id)
        return event_id

    async def _store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        try:
            event_id = await self._store.store_event(f"{current_request.get().session_nonce}:{stream_id}", message)
        except Exception as error:
            # An exception here would end the SDK's task that delivers all further answers of the session.
            _record_failure(self._storing, error)
            return ""
        self._storing.record_success()
        return self._signer.sign(event_id)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        try:
            missed, stream_id = await self.missed_after(last_event_id)
        except Exception:  # logged once; the SDK would log it at each attempt of a client
            return None
        for event in missed:
            await send_callback(event)
        if any(_is_answer(event.message) for event in missed):
            return None  # the stream ends, because nothing follows an answer
        last_sent = next((event.event_id for event in reversed(missed) if event.event_id), last_event_id)
        current_request.update(replayed_up_to=last_sent)
        return stream_id

    async def missed_after(self, last_event_id: str) -> tuple[list[EventMessage], str | None]:
        """The events after this one in its stream, and the id of the stream; None if the event is unknown.

        Raises:
            Exception: from the store. It has been logged.
        """
        missed: list[EventMessage] = []

        async def collect(event: EventMessage) -> None:
            missed.append(replace(event, event_id=event.event_id and self._signer.sign(event.event_id)))

        try:
            event_id = self._signer.unsign(last_event_id)
        except BadSignature:
            return [], None
        try:
            stream_id = await self._store.replay_events_after(event_id, collect)
        except Exception as error:
            _record_failure(self._reading, error)
            raise
        self._reading.record_success()
        return missed, None if stream_id is None else stream_id.partition(":")[2]

    async def forget(self) -> None:
        """Delete the events of the current session, which its client has ended, if the store can do so."""
        if isinstance(self._store, ScopedEventStore):
            with suppress(OSError):  # the events expire at their age, too
                await self._store.forget()

    async def aclose(self) -> None:
        """Release the store's resources that belong to the running event loop."""
        if isinstance(self._store, ScopedEventStore):
            await self._store.aclose()

    @property
    def _signer(self) -> Signer:
        return Signer(salt=f"mcp_serving.event:{current_request.get().session_nonce}")


def _record_failure(health: LayerHealth, error: Exception) -> None:
    if health.available and not isinstance(error, OSError):  # a mistake in the project's own store, not an outage
        logger.error("The event store raised an exception.", exc_info=error)
    health.record_failure(error)


def _is_answer(message: JSONRPCMessage) -> bool:
    return isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
