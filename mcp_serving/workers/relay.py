"""Requests of sessions that live in another worker: relayed there, and their answers streamed back.

Each such request has two ends. ``_Relayed`` is the end where its client is connected. ``IncomingRequest``
is the end where its session is: it is served like a local request, through the same middleware and checks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from mcp.server.transport_security import RequestBodyLimitMiddleware

from mcp_serving.web_servers.request_body import read_body
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers import scope_serialization as callers
from mcp_serving.workers.messaging import MESSAGE_SIZE, SEND_SECONDS, Link, Links, Part
from mcp_serving.workers.scope_serialization import UserNotSerializable

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

WINDOW = 4 * MESSAGE_SIZE
"""Bytes of an answer that are on their way at once: who reads slowly holds up the worker that writes."""

_UNREACHABLE = Refusal(503, "The worker that has this session cannot be reached now.", headers={"retry-after": "1"})
_CANNOT_BE_RELAYED = Refusal(500, "Internal Server Error")


class Fate(Enum):
    """What became of a request that was to be relayed."""

    ANSWERED = "answered"
    OWNER_GONE = "owner gone"
    """Nothing was answered: its session went with the worker that had it."""


class Relay:
    """Both directions of one handler: its requests for other workers, and those of others for it.

    Args:
        layer: the channel layer that the workers have in common.
        serve: serves a request of another worker, as one of the web server.
        place: where the handler is mounted: no request of another mount is served.
        max_body_size: bytes of a request's body.
    """

    def __init__(self, layer: BaseChannelLayer, serve: ASGIApp, place: str, max_body_size: int) -> None:
        self._links = Links(layer, self)
        self._serve = serve
        self._place = place
        self._max_body_size = max_body_size
        self._numbers = itertools.count(1)
        self._relayed: dict[int, _Relayed] = {}
        self._guests: dict[tuple[str, int], IncomingRequest] = {}

    @property
    def channel(self) -> str:
        """What this worker is called by the others; see ``Links``."""
        return self._links.channel

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Relay for as long as the block lasts."""
        async with self._links.open():
            try:
                yield
            finally:
                for relayed in list(self._relayed.values()):
                    relayed.lose(gone=False)
                guests = [guest.task for guest in self._guests.values()]
                for task in guests:
                    task.cancel()
                if guests:
                    await asyncio.wait(guests, timeout=1)

    async def relay(self, channel: str, scope: Scope, receive: Receive, send: Send) -> Fate:
        """Have a request answered by the worker with this channel.

        Returns:
            What became of it; ``OWNER_GONE`` where it is still to be answered.
        """
        fate = Fate.ANSWERED

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal fate
            fate = await self._relay(channel, scope, receive, send)

        await RequestBodyLimitMiddleware(relay, self._max_body_size)(scope, receive, send)
        return fate

    async def _relay(self, channel: str, scope: Scope, receive: Receive, send: Send) -> Fate:
        body = await read_body(receive)
        if body is None:
            return Fate.ANSWERED  # its client has left
        link = self._links.to(channel)
        if link is None:
            return Fate.OWNER_GONE
        if not self.channel:  # which the answer would come to
            await _UNREACHABLE(scope, receive, send)
            return Fate.ANSWERED
        try:
            told = callers.serialize(scope)
        except UserNotSerializable as error:
            logger.error("A request of a session in another worker cannot be relayed there: %s.", error)
            await _CANNOT_BE_RELAYED(scope, receive, send)
            return Fate.ANSWERED
        relayed = _Relayed(next(self._numbers), link)
        self._relayed[relayed.number] = relayed
        link.waiting += 1
        self._links.watch()
        try:
            relayed.ask(told, self._place, body)
            return await relayed.answered(scope, receive, send)
        finally:
            self._forget(relayed)
            if not (relayed.is_complete or link.take_back(relayed.number)) and relayed.may_have_arrived:
                link.say({"kind": "left", "request": relayed.number}, lasts=True)

    def _forget(self, relayed: _Relayed) -> None:
        if self._relayed.pop(relayed.number, None) is not None:
            relayed.link.waiting -= 1

    # What the links tell

    def hear(self, link: Link, part: Part) -> None:
        kind, number = part["kind"], part["request"]
        if kind == "answer":
            if (relayed := self._relayed.get(number)) is not None:
                relayed.hear(part)
                if relayed.is_complete:
                    self._forget(relayed)
        elif kind == "unserved":
            if (relayed := self._relayed.get(number)) is not None:
                relayed.lose(gone=part["gone"])
        elif kind == "request":
            self._take_in(link, number, part)
        elif (guest := self._guests.get((link.channel, number))) is not None:
            guest.hear(part)

    def lose(self, link: Link, *, gone: bool, before: int | None = None) -> None:
        for relayed in list(self._relayed.values()):
            if relayed.link is link and (before is None or relayed.was_said_before(before)):
                relayed.lose(gone=gone)
        if before is None:
            for guest in list(self._guests.values()):
                if guest.link is link:
                    guest.leave()

    # Requests of other workers

    def _take_in(self, link: Link, number: int, part: Part) -> None:
        is_elsewhere = part["place"] != self._place
        # By now the other worker may have told its client something else.
        is_too_late = time.time() > part["until"]
        if is_too_late:
            logger.warning("A request of another worker came too late to be served: are the clocks of both in step?")
        if is_elsewhere or is_too_late:
            link.say({"kind": "unserved", "request": number, "gone": is_elsewhere}, lasts=True)
            return
        guest = IncomingRequest(link, number, part)
        self._guests[link.channel, number] = guest
        link.watched += 1
        self._links.watch()
        # An empty context: it must not inherit what belongs to whoever opened the links.
        guest.task = asyncio.create_task(
            self._serve_guest(guest, part["scope"]), name="mcp_serving guest", context=Context()
        )

    async def _serve_guest(self, guest: IncomingRequest, told: Part) -> None:
        try:
            await self._serve(await callers.deserialize(told), guest.receive, guest.send)
        except Exception:  # of the database, while the user is looked up: the guard has had all else
            logger.exception("A request of another worker failed.")
        finally:
            del self._guests[guest.link.channel, guest.number]
            guest.link.watched -= 1
            if not guest.is_answered:
                guest.link.say({"kind": "unserved", "request": guest.number, "gone": False}, lasts=True)


@dataclass(frozen=True, slots=True)
class _Lost:
    """Nothing more comes of an answer."""

    gone: bool
    """With the worker that had the session; else that can only not be reached."""


class _Relayed:
    """A request whose client is connected here, and whose session is in another worker."""

    def __init__(self, number: int, link: Link) -> None:
        self.number = number
        self.link = link
        self.is_complete = False
        self.may_have_arrived = True
        self._answers: deque[Part | _Lost] = deque()
        self._something = asyncio.Event()
        self._said_in: int | None = None
        self._taken = self._told_taken = 0

    def ask(self, scope: Part, place: str, body: bytes) -> None:
        pieces = [body[start : start + MESSAGE_SIZE] for start in range(0, max(len(body), 1), MESSAGE_SIZE)]
        request: Part = {
            "kind": "request",
            "request": self.number,
            "scope": scope,
            "place": place,
            # Before it is refused here, because the layer has not answered: then nothing may come of it any more. The
            # clocks of the workers are in step, which a layer's expiry needs anyway.
            "until": time.time() + 0.9 * SEND_SECONDS,
        }
        for index, piece in enumerate(pieces):
            part = request if not index else {"kind": "body", "request": self.number}
            self.link.say(
                {**part, "body": piece, "more": index < len(pieces) - 1},
                size=len(piece),
                on_refused=self._refused_later if index else self._refused,
                on_sent=None if index else self._is_said,
            )

    def _refused(self, may_have_arrived: bool) -> None:
        self.may_have_arrived = may_have_arrived
        self.lose(gone=False)

    def _refused_later(self, _: bool) -> None:
        self.lose(gone=False)

    def _is_said(self, number: int) -> None:
        self._said_in = number

    def was_said_before(self, number: int) -> bool:
        return self._said_in is not None and self._said_in < number

    def hear(self, part: Part) -> None:
        self._put(part)
        self.is_complete = self.is_complete or not part["more"]

    def lose(self, *, gone: bool) -> None:
        self._put(_Lost(gone))

    def _put(self, answer: Part | _Lost) -> None:
        self._answers.append(answer)
        self._something.set()

    async def answered(self, scope: Scope, receive: Receive, send: Send) -> Fate:
        """Send on what comes from the other worker, until all of it came, or the client has left."""
        client = asyncio.ensure_future(_until_left(receive))
        client.add_done_callback(lambda _: self._something.set())
        started = False
        try:
            while (answer := await self._next(client)) is not None:
                if isinstance(answer, _Lost):
                    if started:
                        break  # the guard breaks it off
                    if answer.gone:
                        return Fate.OWNER_GONE
                    await _UNREACHABLE(scope, receive, send)
                    break
                if "status" in answer:
                    started = True
                    # Whether a connection goes on is between a client and its own worker.
                    headers = [(name, value) for name, value in answer["headers"] if name.lower() != b"connection"]
                    await send({"type": "http.response.start", "status": answer["status"], "headers": headers})
                await send({"type": "http.response.body", "body": answer["body"], "more_body": answer["more"]})
                self._take(len(answer["body"]))
                if not answer["more"]:
                    break
            return Fate.ANSWERED
        finally:
            client.cancel()

    async def _next(self, client: asyncio.Future[None]) -> Part | _Lost | None:
        """What comes from the other worker; None once the client has left."""
        while not (self._answers or client.done()):
            self._something.clear()
            await self._something.wait()
        return None if client.done() else self._answers.popleft()

    def _take(self, size: int) -> None:
        self._taken += size
        if self._taken - self._told_taken >= WINDOW // 2:
            self._told_taken = self._taken
            self.link.say({"kind": "taken", "request": self.number, "bytes": self._taken})


class IncomingRequest:
    """A request whose session is here, and whose client is connected to another worker."""

    task: asyncio.Task[None]

    def __init__(self, link: Link, number: int, part: Part) -> None:
        self.link = link
        self.number = number
        self.is_answered = False
        self._pieces: deque[Part] = deque([part])
        self._start: Message | None = None
        self._has_left = False
        self._sent = self._taken = 0
        self._changed = asyncio.Event()

    def hear(self, part: Part) -> None:
        if part["kind"] == "body":
            self._pieces.append(part)
        elif part["kind"] == "taken":
            self._taken = part["bytes"]
        else:
            self._has_left = True
        self._changed.set()

    def leave(self) -> None:
        self._has_left = True
        self._changed.set()

    async def receive(self) -> Message:
        while not self._pieces and not self._has_left:
            await self._change()
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.popleft()
        return {"type": "http.request", "body": piece["body"], "more_body": piece["more"]}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # it goes with the first of the body, which always comes soon
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), MESSAGE_SIZE):
            piece = body[start : start + MESSAGE_SIZE]
            while self._sent - self._taken + len(piece) > WINDOW and not self._has_left:
                await self._change()
            await self._say(piece, more=more or start + MESSAGE_SIZE < len(body))

    async def _say(self, piece: bytes, *, more: bool) -> None:
        answer: Part = {"kind": "answer", "request": self.number, "body": piece, "more": more}
        if self._start is not None:
            answer["status"] = self._start["status"]
            answer["headers"] = [list(header) for header in self._start.get("headers", ())]
            self._start = None
        self._sent += len(piece)
        if self._has_left:
            return
        if more:
            self.link.say(answer, size=len(piece))
            return
        self.link.say(answer, size=len(piece), on_sent=self._is_on_its_way)
        while not (self.is_answered or self._has_left):  # a shutdown must not overtake it
            await self._change()

    def _is_on_its_way(self, _: int) -> None:
        self.is_answered = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
