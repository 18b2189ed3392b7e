"""The events of a session, which its client may resume after: its own, whatever store keeps them."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from django.core.signing import BadSignature, Signer
from mcp.server.streamable_http import EventStore

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventMessage
    from mcp_types import JSONRPCMessage

logger = logging.getLogger(__name__)

session_nonce: ContextVar[str] = ContextVar("mcp_serving.session_nonce", default="")
"""Of the session that is at hand: in its requests, and in the task that writes its streams."""


class SessionEvents(EventStore):
    """An event store in which each session has events of its own, whatever store is underneath.

    The SDK tells a store the id of a request and no session: "1" in all of them. Without this, who resumes
    would be sent what others have missed.

    Args:
        store: keeps the events of all sessions.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        try:
            event_id = await self._store.store_event(f"{session_nonce.get()}:{stream_id}", message)
        except Exception:
            # Raised into the SDK, it would end what delivers the answers of the session, all that are still to come.
            logger.exception("An event could not be stored: it is sent without an id, and cannot be resumed after.")
            return ""
        return self._signer.sign(event_id)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        async def send_signed(event: EventMessage) -> None:
            event_id = event.event_id
            await send_callback(replace(event, event_id=event_id and self._signer.sign(event_id)))

        try:
            event_id = self._signer.unsign(last_event_id)
        except BadSignature:
            return None
        stream_id = await self._store.replay_events_after(event_id, send_signed)
        return None if stream_id is None else stream_id.partition(":")[2]

    @property
    def _signer(self) -> Signer:
        return Signer(salt=f"mcp_serving.event:{session_nonce.get()}")
