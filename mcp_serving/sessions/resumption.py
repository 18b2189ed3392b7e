"""What a client gets of a session whose worker is gone."""

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

_LAST_EVENT = LAST_EVENT_ID_HEADER.encode()
_UNREADABLE = Refusal(503, "The events cannot be read.", headers={"retry-after": "5"})


async def replay_what_is_left(
    events: SessionEvents, session_id: str, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Answer a request that resumes a session which nobody serves any more: with what its client has missed.

    The stream ends after it, since nothing more will come. The current request has the ``session_nonce``.

    Args:
        events: of the handler.
        session_id: the SDK's, which the request has in its header.
        scope: of the request; where it does not resume, nothing is done.
        receive: waits until the client leaves, as a web server's does: the SDK asks it over and over.

    Returns:
        Whether the request is answered: with the events, or with 503 while the store cannot be read. False where
        there is nothing left: then the session does not exist.
    """
    last_event_id = next((value for name, value in scope["headers"] if name == _LAST_EVENT), b"")
    if scope["method"] != "GET" or not last_event_id:
        return False
    try:
        left, _ = await events.left_after(last_event_id.decode("latin-1"))
    except Exception:  # which is logged
        await _UNREADABLE(scope, receive, send)
        return True
    if not left:
        return False
    transport = StreamableHTTPServerTransport(
        session_id, event_store=_Left(left), security_settings=sdk.without_host_checks()
    )
    async with transport.connect():
        await transport.handle_request(scope, receive, send)
        await transport.terminate()  # or the SDK takes the end for a failure, and prints a traceback
    return True


class _Left(EventStore):
    """A store with one replay, after which the SDK ends the stream: it waits only where a stream has an id."""

    def __init__(self, left: list[EventMessage]) -> None:
        self._left = left

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        raise NotImplementedError("Nothing comes of a session that nobody serves.")

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        for event in self._left:
            await send_callback(event)
