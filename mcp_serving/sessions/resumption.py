"""Resuming a session whose worker is gone: its client gets the events that it missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, EventStore, StreamableHTTPServerTransport

from mcp_serving import sdk
from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventMessage
    from mcp_types import JSONRPCMessage
    from starlette.types import Receive, Scope, Send

    from mcp_serving.sessions.resumable_events import SessionEvents

_LAST_EVENT_ID = LAST_EVENT_ID_HEADER.encode()
_UNREADABLE = Refusal(503, "The events cannot be read.", headers={"retry-after": "5"})


async def replay_missed_events(
    events: SessionEvents, session_id: str, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Answer a request that resumes a stream of a session which no worker has any more.

    The response has the events that the client missed. Then the stream ends, because nothing more will come. The
    current request must have the ``session_nonce``.

    Args:
        events: the resumable events of the handler.
        session_id: the SDK's session id, which the request has in its header.
        scope: the request. A request that does not resume a stream is not answered.
        receive: must wait until the client leaves, as a web server's does, because the SDK calls it repeatedly.

    Returns:
        True if the request is answered: with the events, or with 503 if the store cannot be read. False if there are
        no events, so that the session does not exist.
    """
    last_event_id = next((value for name, value in scope["headers"] if name == _LAST_EVENT_ID), b"")
    if scope["method"] != "GET" or not last_event_id:
        return False
    try:
        missed, _ = await events.missed_after(last_event_id.decode("latin-1"))
    except Exception:  # SessionEvents has logged it
        await _UNREADABLE(scope, receive, send)
        return True
    if not missed:
        return False
    transport = StreamableHTTPServerTransport(
        session_id, event_store=_MissedEvents(missed), security_settings=sdk.without_host_checks()
    )
    async with transport.connect():
        await transport.handle_request(scope, receive, send)
        await transport.terminate()  # without it, the SDK takes the end for a failure and logs a traceback
    return True


class _MissedEvents(EventStore):
    """An event store for one replay. It returns no stream id, so that the SDK ends the stream after the replay."""

    def __init__(self, missed: list[EventMessage]) -> None:
        self._missed = missed

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        raise NotImplementedError("A session without a worker has no new events.")

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        for event in self._missed:
            await send_callback(event)
