"""Relaying requests for sessions in other workers, and serving the requests that other workers relay.

A relayed request has two ends. ``OutgoingRequest`` is in the worker to which the client is connected.
``IncomingRequest`` is in the worker that has the session, which serves it like a request of its own clients, through
the same middleware and checks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import RequestBodyLimitMiddleware

from mcp_serving import current_request
from mcp_serving.logs import request_name
from mcp_serving.web_servers.request_body import read_body
from mcp_serving.workers import scope_serialization
from mcp_serving.workers.incoming_request import IncomingRequest
from mcp_serving.workers.json_rpc import request_in
from mcp_serving.workers.messaging import Messaging
from mcp_serving.workers.outgoing_request import UNREACHABLE, OutgoingRequest, RelayResult

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.workers.json_rpc import RequestInBody
    from mcp_serving.workers.peer import Frame, Peer

logger = logging.getLogger(__name__)


class Relay:
    """The relayed requests of one handler, in both directions.

    Args:
        layer: the channel layer that the workers share.
        serve: serves a request of another worker.
        mount: the paths of the handler. Requests for another mount are not served.
        max_body_size: bytes of a request's body.
    """

    def __init__(self, layer: BaseChannelLayer, serve: ASGIApp, mount: str, max_body_size: int) -> None:
        self._messaging = Messaging(layer, self)
        self._serve = serve
        self._mount = mount
        self._max_body_size = max_body_size
        self._numbers = itertools.count(1)
        self._outgoing: dict[int, OutgoingRequest] = {}
        self._incoming: dict[tuple[str, int], IncomingRequest] = {}

    @property
    def channel(self) -> str:
        """The channel of this worker; see ``Messaging``."""
        return self._messaging.channel

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Relay requests for the length of the block."""
        async with self._messaging.open():
            try:
                yield
            finally:
                for outgoing in list(self._outgoing.values()):
                    outgoing.lose(gone=False)
                tasks = [incoming.task for incoming in self._incoming.values()]
                for task in tasks:
                    task.cancel()
                if tasks:
                    await asyncio.wait(tasks, timeout=1)

    # Requests for sessions in other workers

    async def relay(self, channel: str, scope: Scope, receive: Receive, send: Send) -> RelayResult:
        """Have a request answered by the worker with this channel.

        Returns:
            Whether the request was answered. After ``OWNER_GONE``, the caller has to answer it.
        """
        result = RelayResult.ANSWERED

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal result
            result = await self._relay(channel, scope, receive, send)

        await RequestBodyLimitMiddleware(relay, self._max_body_size)(scope, receive, send)
        return result

    async def _relay(self, channel: str, scope: Scope, receive: Receive, send: Send) -> RelayResult:
        body = await read_body(receive)
        if body is None:
            return RelayResult.ANSWERED  # the client has left
        peer = self._messaging.peer(channel)
        if peer is None:
            return RelayResult.OWNER_GONE
        if not self.channel:  # the response could not be sent here
            await UNREACHABLE(scope, receive, send)
            return RelayResult.ANSWERED
        outgoing = OutgoingRequest(next(self._numbers), peer)
        self._outgoing[outgoing.number] = outgoing
        peer.awaited += 1
        self._messaging.watch()
        try:
            outgoing.send_request(scope_serialization.serialize(scope), self._mount, body)
            request = request_in(body) if scope["method"] == "POST" else None
            if request is None:
                return await outgoing.answer(scope, receive, send)
            return await self._answer_call(outgoing, request, scope, receive, send)
        finally:
            self._forget(outgoing)
            outgoing.close()

    async def _answer_call(
        self, outgoing: OutgoingRequest, request: RequestInBody, scope: Scope, receive: Receive, send: Send
    ) -> RelayResult:
        """Answer a call. A shutdown treats it like a call of this worker, although its handler is in another one."""
        in_flight = current_request.get().in_flight
        if in_flight is None:
            return await outgoing.answer(scope, receive, send)
        in_flight.name = request_name(request.method, request.params)
        # It is not known here whether the tool asks. The client may answer a question on a new connection.
        in_flight.may_ask_client()
        with in_flight.handled():
            return await outgoing.answer(scope, receive, send)
        await outgoing.send_error(request.id, "The server is shutting down; the call was cancelled.", send)
        return RelayResult.ANSWERED

    def _forget(self, outgoing: OutgoingRequest) -> None:
        if self._outgoing.pop(outgoing.number, None) is not None:
            outgoing.peer.awaited -= 1

    # The handler of frames

    def handle_frame(self, peer: Peer, frame: Frame) -> None:
        kind, number = frame["kind"], frame["request"]
        if kind == "response":
            if (outgoing := self._outgoing.get(number)) is not None:
                outgoing.handle_response(frame)
                if outgoing.is_complete:
                    self._forget(outgoing)
        elif kind == "rejected":
            if (outgoing := self._outgoing.get(number)) is not None:
                outgoing.lose(gone=frame["gone"])
        elif kind == "request":
            self._accept(peer, number, frame)
        elif (incoming := self._incoming.get((peer.channel, number))) is not None:
            incoming.handle_frame(frame)

    def handle_loss(self, peer: Peer, *, gone: bool, before: int | None = None) -> None:
        for outgoing in list(self._outgoing.values()):
            if outgoing.peer is peer and (before is None or outgoing.was_sent_before(before)):
                outgoing.lose(gone=gone)
        if before is None:
            for incoming in list(self._incoming.values()):
                if incoming.peer is peer:
                    incoming.disconnect()

    # Requests of other workers

    def _accept(self, peer: Peer, number: int, frame: Frame) -> None:
        is_for_another_mount = frame["mount"] != self._mount
        # After this moment, the other worker may have refused the request already.
        has_expired = time.time() > frame["until"]
        if has_expired:
            logger.warning(
                "A request of another worker arrived too late and is not served. Check that the clocks of all machines "
                "agree to one second."
            )
        if is_for_another_mount or has_expired:
            peer.send({"kind": "rejected", "request": number, "gone": is_for_another_mount}, keep=True)
            return
        incoming = IncomingRequest(peer, number, frame)
        self._incoming[peer.channel, number] = incoming
        peer.served += 1
        self._messaging.watch()
        # An empty context, so that the request does not inherit the context in which the relay was opened.
        incoming.task = asyncio.create_task(
            self._serve_incoming(incoming, frame["scope"]), name="mcp_serving relayed request", context=Context()
        )

    async def _serve_incoming(self, incoming: IncomingRequest, serialized: dict[str, Any]) -> None:
        try:
            await self._serve(await scope_serialization.deserialize(serialized), incoming.receive, incoming.send)
        except Exception:  # from the database, while the user is loaded; the middleware handles all others
            logger.exception("A request of another worker failed.")
        finally:
            incoming.close()
            del self._incoming[incoming.peer.channel, incoming.number]
            incoming.peer.served -= 1
            if not incoming.is_answered:
                incoming.peer.send({"kind": "rejected", "request": incoming.number, "gone": False}, keep=True)
