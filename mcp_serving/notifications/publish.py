"""Telling clients that something has changed: from any code, in any process of the project.

Nothing here needs the SDK, which a process that only tells of a change does not load.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import uuid4
from weakref import WeakSet

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from mcp_serving import channel_layer
from mcp_serving.loading import in_one_line

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = logging.getLogger(__name__)

GROUP = "mcp_serving.notifications.publish"
"""Every process that serves MCP is in this group of the channel layer."""

SEND_SECONDS = 2.0
"""How long a channel layer that does not answer may hold up who tells of a change."""

ATTEMPTS = 3
"""How often something is tried. An event that arrives twice is heard once."""

PAUSE_SECONDS = 1.0
"""After a failure, how long nothing else is sent: a loop over many changes must not wait for each of them."""

REMEMBERED = 4096
"""How many events a process knows again: its own come back to it, and a layer may deliver one twice."""


# What user code calls


def notify_resource_updated(uri: str, *, using: str | None = None) -> None:
    """Tell every client that has subscribed to ``uri``, in every process, that this resource has changed.

    Like the other three, it may be called in views, management commands, Celery tasks, signal handlers and sync
    tools. In a transaction, the clients are told after the commit, and never of what is rolled back. A channel
    layer that cannot be reached is logged, and no error of the caller.

    Args:
        uri: of the resource, as clients subscribe to it.
        using: the database whose transaction is waited for; the default one if left out.

    Example:
        >>> Order.objects.filter(number=7).update(status="paid")
        >>> notify_resource_updated("shop://orders/7")
    """
    _publish_after_commit(message("resource_updated", uri=str(uri)), using)


def notify_resources_changed(*, using: str | None = None) -> None:
    """Tell every client that wants to know that the list of resources has changed; see ``notify_resource_updated``."""
    _publish_after_commit(message("resources_changed"), using)


def notify_tools_changed(*, using: str | None = None) -> None:
    """Tell every client that wants to know that the list of tools has changed; see ``notify_resource_updated``."""
    _publish_after_commit(message("tools_changed"), using)


def notify_prompts_changed(*, using: str | None = None) -> None:
    """Tell every client that wants to know that the list of prompts has changed; see ``notify_resource_updated``."""
    _publish_after_commit(message("prompts_changed"), using)


async def anotify_resource_updated(uri: str, *, using: str | None = None) -> None:
    """``notify_resource_updated`` for async code: it waits for a transaction of the async ORM."""
    await _apublish_after_commit(message("resource_updated", uri=str(uri)), using)


async def anotify_resources_changed(*, using: str | None = None) -> None:
    """``notify_resources_changed`` for async code."""
    await _apublish_after_commit(message("resources_changed"), using)


async def anotify_tools_changed(*, using: str | None = None) -> None:
    """``notify_tools_changed`` for async code."""
    await _apublish_after_commit(message("tools_changed"), using)


async def anotify_prompts_changed(*, using: str | None = None) -> None:
    """``notify_prompts_changed`` for async code."""
    await _apublish_after_commit(message("prompts_changed"), using)


# An event as the channel layer carries it

Message: TypeAlias = dict[str, Any]
"""What a channel layer carries of an event: text alone, and nothing of the SDK's."""


def message(kind: str, *, uri: str | None = None, server: str | None = None) -> Message:
    """An event of all servers, or of those with one name."""
    return {"type": "mcp_serving.event", "id": uuid4().hex, "kind": kind, "uri": uri, "server": server}


# When

_sending: set[asyncio.Task[None]] = set()
"""What nobody awaits: an event loop refers to its tasks weakly."""


def _publish_after_commit(event: Message, using: str | None) -> None:
    connection = connections[using or DEFAULT_DB_ALIAS]
    if connection.in_atomic_block:
        connection.on_commit(partial(_publish, event), robust=True)
    else:  # on_commit() would connect, and raise where there is no database, or no autocommit
        _publish(event)


async def _apublish_after_commit(event: Message, using: str | None) -> None:
    try:
        await sync_to_async(_publish_after_commit)(event, using)
    except RuntimeError:  # of asgiref: the task has outlived the call whose thread, and transaction, it could have had
        here.deliver(event)
        await others.send(event)


def _publish(event: Message) -> None:
    """Tell this process and the others, from any thread; it never raises."""
    try:
        here.deliver(event)
        if not others.exist:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(others.send)(event)
        else:  # whoever called sync code in an event loop cannot wait
            task = loop.create_task(others.send(event), context=Context())
            _sending.add(task)
            task.add_done_callback(_sending.discard)
    except Exception as error:
        logger.warning("Clients were not told of a change (%s).", in_one_line(error))


# To whom


class Bus(Protocol):
    """What carries the events of one server to its subscribers, as ``ChannelLayerBus`` does."""

    def hear(self, event: Message) -> None: ...


class Here:
    """The buses of this process: each event reaches them once, however often it arrives."""

    def __init__(self) -> None:
        self._buses: WeakSet[Bus] = WeakSet()
        self._known: dict[str, None] = {}
        self._lock = threading.Lock()

    def join(self, bus: Bus) -> None:
        """Have this bus hear of each event, for as long as somebody else refers to it."""
        with self._lock:
            self._buses.add(bus)

    @property
    def has_buses(self) -> bool:
        return len(self._buses) > 0

    def remember(self, event: Message) -> bool:
        """Remember that it was here; whether it is new."""
        with self._lock:
            if event["id"] in self._known:
                return False
            self._known[event["id"]] = None
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
            return True

    def deliver(self, event: Message) -> None:
        """Have each bus hear of it, unless it was here before."""
        if not self.remember(event):
            return
        with self._lock:
            buses = list(self._buses)
        for bus in buses:
            bus.hear(event)


class Others:
    """The other processes, which the channel layer leads to; it may be away for a while."""

    def __init__(self) -> None:
        self.away = False
        """Whether the layer did not answer the last time."""
        self._paused_until = 0.0

    @property
    def exist(self) -> bool:
        return self.layer() is not None

    def layer(self) -> BaseChannelLayer | None:
        """The channel layer, where the project has one that reaches other processes."""
        return channel_layer.shared_layer()

    async def send(self, event: Message) -> None:
        """Send it to all of them, if there are any; it never raises."""
        if self.away and time.monotonic() < self._paused_until:
            return
        try:
            layer = self.layer()
            if layer is None:
                return
            async with asyncio.timeout(SEND_SECONDS):
                await tried(lambda: layer.group_send(GROUP, event))
        except Exception as error:
            self.failed(error)
        else:
            self.answered()

    def failed(self, error: Exception) -> None:
        """The layer did not answer: said once, until it does again."""
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        if not self.away:
            self.away = True
            logger.warning(
                "The channel layer cannot be used (%s): until it can, an event reaches no other process, and a request "
                "of a session in another worker gets 503.",
                in_one_line(error),
            )

    def answered(self) -> None:
        """The layer works, as far as anybody can tell from this one answer."""
        if self.away:
            self.away = False
            logger.warning("The channel layer can be used again.")


async def tried(work: Callable[[], Awaitable[None]]) -> None:
    """``work``, once more where it fails: each connection that Redis has closed meanwhile costs one attempt."""
    for left in reversed(range(ATTEMPTS)):
        try:
            await work()
            return
        except Exception:
            if not left:
                raise


here = Here()
others = Others()
