"""Telling clients about a change, from any code in any process of the project.

This module does not need the SDK: a process that only sends notifications does not load it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, Protocol, TypeAlias
from uuid import uuid4
from weakref import WeakSet

from asgiref.sync import async_to_sync, sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from mcp_serving import channel_layer
from mcp_serving.loading import in_one_line

logger = logging.getLogger(__name__)

GROUP = "mcp_serving.notifications"
"""The group of the channel layer that every process with an MCP server joins."""

SEND_TIMEOUT = 2.0
"""Seconds for which a channel layer that does not answer may block the sender of a notification."""

ATTEMPTS = 3
"""How often an operation on the layer is tried. A notification that arrives twice is delivered once."""

MAX_KNOWN = 4096
"""How many ids of notifications a process remembers, to deliver each notification once."""


# What user code calls


def notify_resource_updated(uri: str, *, using: str | None = None) -> None:
    """Tell every client that has subscribed to ``uri``, in every process, that this resource has changed.

    Like the other three functions, it may be called in views, management commands, Celery tasks, signal handlers and
    sync tools. Inside a transaction, clients are told after the commit, and never after a rollback. A failing channel
    layer is logged and raises no error here.

    Args:
        uri: the URI of the resource, as clients subscribe to it.
        using: the database whose transaction is waited for. By default, the database ``default``.

    Example:
        >>> Order.objects.filter(number=7).update(status="paid")
        >>> notify_resource_updated("shop://orders/7")
    """
    _publish_after_commit(notification("resource_updated", uri=str(uri)), using)


def notify_resources_changed(*, using: str | None = None) -> None:
    """Tell clients that the list of resources has changed; see ``notify_resource_updated``."""
    _publish_after_commit(notification("resources_changed"), using)


def notify_tools_changed(*, using: str | None = None) -> None:
    """Tell clients that the list of tools has changed; see ``notify_resource_updated``."""
    _publish_after_commit(notification("tools_changed"), using)


def notify_prompts_changed(*, using: str | None = None) -> None:
    """Tell clients that the list of prompts has changed; see ``notify_resource_updated``."""
    _publish_after_commit(notification("prompts_changed"), using)


async def anotify_resource_updated(uri: str, *, using: str | None = None) -> None:
    """``notify_resource_updated`` for async code: it waits for a transaction of the async ORM."""
    await _apublish_after_commit(notification("resource_updated", uri=str(uri)), using)


async def anotify_resources_changed(*, using: str | None = None) -> None:
    """``notify_resources_changed`` for async code."""
    await _apublish_after_commit(notification("resources_changed"), using)


async def anotify_tools_changed(*, using: str | None = None) -> None:
    """``notify_tools_changed`` for async code."""
    await _apublish_after_commit(notification("tools_changed"), using)


async def anotify_prompts_changed(*, using: str | None = None) -> None:
    """``notify_prompts_changed`` for async code."""
    await _apublish_after_commit(notification("prompts_changed"), using)


# A notification as the channel layer carries it

Notification: TypeAlias = dict[str, Any]
"""A notification as a channel layer carries it: strings only, and no types of the SDK."""


def notification(kind: str, *, uri: str | None = None, server: str | None = None) -> Notification:
    """A notification for all MCP servers, or for those with one name."""
    return {"type": "mcp_serving.notification", "id": uuid4().hex, "kind": kind, "uri": uri, "server": server}


# When it is sent

_sending: set[asyncio.Task[None]] = set()
"""Tasks that nobody awaits. The event loop itself has only weak references to its tasks."""


def _publish_after_commit(change: Notification, using: str | None) -> None:
    connection = connections[using or DEFAULT_DB_ALIAS]
    if connection.in_atomic_block:
        connection.on_commit(partial(_publish, change), robust=True)
    else:  # on_commit() would connect, and would raise without a database or without autocommit
        _publish(change)


async def _apublish_after_commit(change: Notification, using: str | None) -> None:
    try:
        await sync_to_async(_publish_after_commit)(change, using)
    except RuntimeError:
        # asgiref raises it in a task that outlives its call: the thread of that call, and its transaction, are gone.
        local_buses.deliver(change)
        await send_to_other_processes(change)


def _publish(change: Notification) -> None:
    """Tell this process and the others, from any thread. It never raises."""
    try:
        local_buses.deliver(change)
        if channel_layer.shared_layer() is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(send_to_other_processes)(change)
        else:  # sync code that runs in an event loop must not block it
            task = loop.create_task(send_to_other_processes(change), context=Context())
            _sending.add(task)
            task.add_done_callback(_sending.discard)
    except Exception as error:
        logger.warning("Clients were not notified of a change (%s).", in_one_line(error))


# To whom it is sent


class Bus(Protocol):
    """Delivers notifications to the subscribers of one MCP server, as ``ChannelLayerBus`` does."""

    def deliver(self, change: Notification) -> None: ...


class LocalBuses:
    """The buses of this process. Each notification reaches them once, however often it arrives."""

    def __init__(self) -> None:
        self._buses: WeakSet[Bus] = WeakSet()
        self._known: dict[str, None] = {}
        self._lock = threading.Lock()

    def add(self, bus: Bus) -> None:
        """Deliver every notification to this bus, for as long as other code refers to it."""
        with self._lock:
            self._buses.add(bus)

    @property
    def exist(self) -> bool:
        return len(self._buses) > 0

    def remember(self, change: Notification) -> bool:
        """Remember the id of a notification; returns whether it is new."""
        with self._lock:
            if change["id"] in self._known:
                return False
            self._known[change["id"]] = None
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
            return True

    def deliver(self, change: Notification) -> None:
        """Deliver a notification to each bus, unless it arrived before."""
        if not self.remember(change):
            return
        with self._lock:
            buses = list(self._buses)
        for bus in buses:
            bus.deliver(change)


local_buses = LocalBuses()


async def send_to_other_processes(change: Notification) -> None:
    """Send a notification to all other processes, if the project has a layer that reaches them. It never raises."""
    if not channel_layer.health.may_try():
        return
    try:
        layer = channel_layer.shared_layer()
        if layer is None:
            return
        async with asyncio.timeout(SEND_TIMEOUT):
            await retried(lambda: layer.group_send(GROUP, change))
    except Exception as error:
        channel_layer.health.record_failure(error)
    else:
        channel_layer.health.record_success()


async def retried(operation: Callable[[], Awaitable[None]]) -> None:
    """Run an operation on the layer until it succeeds, at most ``ATTEMPTS`` times.

    Each connection that Redis has closed in the meantime costs one attempt.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            await operation()
            return
        except Exception:
            if not left:
                raise
