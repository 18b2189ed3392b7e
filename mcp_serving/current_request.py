"""The request that is being handled: one object, in the package's one context variable.

The modules that handle a request store their part of it here. It travels with the context: from the ASGI
application through the SDK to the handler, into tasks that the handler starts, and into its thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from mcp.server.context import ServerRequestContext

    from mcp_serving.shutdown.in_flight import InFlightRequest
    from mcp_serving.signals import Outcome


@dataclass(slots=True, eq=False)
class CallNotes:
    """Notes about a running call, for its record."""

    thread_wait: float = 0.0
    """Seconds in which its sync functions waited for a free thread."""
    answer_size: int | None = None
    """Bytes of the result as JSON, if another check has counted them."""
    outcome: tuple[Outcome, str] | None = None
    """The outcome and its reason, if the answer does not show them."""


@dataclass(frozen=True, eq=False)
class CurrentRequest:
    """What is known of the request that is being handled; outside of a request, the defaults.

    It never changes: ``update`` and ``updated`` put a changed copy into the running context, so that a task that
    was started earlier keeps its own. It has no ``__eq__``, because asgiref compares context variables after
    each sync function, and comparing users may query the database.
    """

    in_flight: InFlightRequest | None = None
    """The entry that the MCP handler's response ends."""
    call: CallNotes | None = None
    """The notes about the running call; None if nobody wants its record."""
    session_nonce: str = ""
    """Of the session that the request belongs to; also in the task that writes the session's streams."""
    replayed_up_to: str = ""
    """The id of the last event that was sent on the stream which is being resumed."""
    local_user: AbstractBaseUser | None = None
    """The user of a transport without HTTP requests: ``runmcp --user``, the client for tests."""
    mcp_context: ServerRequestContext[Any, Any] | None = None
    """The SDK's context of the MCP request."""
    principal: str | None = None
    """The user or token of an MCP request over HTTP, for the limits; None for an anonymous caller, and over stdio."""
    listen_uris: frozenset[str] | None = None
    """The URIs that a ``subscriptions/listen`` request subscribes to, and that its user may read."""
    question_round: object = None
    """The round trip of a tool that asks the user; belongs to ``tools.request_state``."""
    tool_arguments: Mapping[str, Any] | None = None
    """The arguments of the tool that runs."""
    failures: list[BaseException] | None = None
    """Collects the unexpected exceptions of the handler, for a developer who looks at the console; None elsewhere."""
    in_callers_thread: bool = False
    """True for the client for tests: handlers run in the test's own thread, and so in its transaction."""
    is_preview: bool = False
    """True while a tool runs only to show what it would change."""
    held_mail: list[Any] | None = None
    """The mail of such a run, which is not sent."""
    orm_thread: object = None
    """The thread for the async ORM of the call; belongs to ``threads``."""
    holds_a_thread: bool = False
    """True within a sync function in the pool, and in code that it calls through ``async_to_sync``."""


_new = object.__new__
_OUTSIDE = _new(CurrentRequest)
"""It has no attributes of its own, only the defaults of the class: a copy contains only the changed fields. So no field
can have a ``default_factory``."""

_current: ContextVar[CurrentRequest] = ContextVar("mcp_serving.current_request", default=_OUTSIDE)


def get() -> CurrentRequest:
    """The request that is being handled in the running context."""
    return _current.get()


def is_preview() -> bool:
    """Whether the running write tool only shows what it would change, and is rolled back afterwards.

    Use it to skip actions that a rollback cannot undo: a payment, a file, a request to another service.

    Example:
        >>> @server.write_tool(confirm="Refund order {number}?", preview=True)
        ... def refund(number: int) -> str:
        ...     order = Order.objects.get(number=number)
        ...     if not is_preview():
        ...         payments.refund(order)
    """
    return _current.get().is_preview


def update(**changes: Any) -> None:
    """Change fields of the current request until the context ends, or the ``updated`` block around this call."""
    _current.set(_changed(changes))


def updated(**changes: Any) -> AbstractContextManager[None]:
    """Change fields of the current request for the length of a block."""
    return _Updated(changes)


class _Updated:
    """The block of ``updated``. It is not a generator, which is slower: each call enters several of these blocks."""

    __slots__ = ("_changes", "_token")

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes

    def __enter__(self) -> None:
        self._token = _current.set(_changed(self._changes))

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def _changed(changes: dict[str, Any]) -> CurrentRequest:
    # dataclasses.replace() takes ten times as long, and each call changes several fields one after another.
    changed = _new(CurrentRequest)
    fields = changed.__dict__
    fields |= _current.get().__dict__
    fields |= changes
    return changed


def note_outcome(outcome: Outcome, reason: str = "") -> None:
    """Note for the record how the running call ends, if the answer does not show it."""
    if (call := _current.get().call) is not None:
        call.outcome = outcome, reason


def note_failure(error: BaseException) -> None:
    """Keep an unexpected exception for the developer who looks at the request, if somebody does."""
    if (failures := _current.get().failures) is not None:
        failures.append(error)
