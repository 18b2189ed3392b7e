"""The Django signal that is sent when a call has finished, and the record of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from django.dispatch import Signal


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    ASKED = "asked"
    """The answer was a question to the user. The call continues with another request. Only since 2026-07-28."""
    TOOL_ERROR = "tool_error"
    """The tool, resource or prompt answered with an error of its own, such as a ``ToolError``."""
    REFUSED = "refused"
    """The call did not run; ``reason`` says why."""
    DECLINED = "declined"
    """The user said no to the question of a write tool, or closed the question."""
    CANCELLED = "cancelled"
    """The client cancelled the call, or has left."""
    FAILED = "failed"
    """The call raised an unexpected exception. Its class is the ``reason``."""
    CUT = "cut"
    """A shutdown ended the call."""


class CallRecord(NamedTuple):
    """One finished call of a tool, resource, prompt or completion. Arguments and results are not part of it.

    Texts of clients have at most 200 characters, and unprintable characters are escaped.
    """

    started: datetime
    """When the call began, in UTC."""
    method: str
    """``tools/call``, ``resources/read``, ``prompts/get`` or ``completion/complete``."""
    name: str
    """The name of the tool or prompt, or the URI of the resource."""
    outcome: Outcome
    reason: str
    """For ``REFUSED``: permission, scope, unknown, arguments, limit, rate, elicitation or answer. For ``FAILED``: the
    class of the exception. For ``DECLINED``: canceled, if the user closed the question. Otherwise empty."""
    duration: float
    """Seconds. With a client up to 2025-11-25, they include the time in which the user answers a question."""
    thread_wait: float
    """Seconds in which sync functions of the call waited for a free thread."""
    answer_size: int
    """Bytes of the result as JSON; 0 if the answer is a JSON-RPC error, or if there is no answer."""
    transport: str
    """``http``, ``stdio``, or ``in-process`` for the console and ``manage.py mcp call``."""
    protocol_version: str
    request_id: str
    session: str | None
    """Identifies the session of a client up to 2025-11-25 over HTTP. It is not the id that the client sends."""
    user: str | None
    """The name of the Django user; None for an anonymous caller."""
    user_id: str | None
    """The primary key of the Django user, as text."""
    token: str | None
    """The ``client_id`` of the bearer token: the public part of a token of ``mcp_serving.tokens``, or the id of the
    client that signed in with OAuth. With the user, it identifies the grant. None without a token."""
    client: str | None
    """The name that the client program gives itself."""
    client_version: str | None


MakeRecord: TypeAlias = Callable[[], CallRecord]
"""Makes the record of a finished call."""

listeners: list[Callable[[MakeRecord, Any, Mapping[str, Any] | None], None]] = []
"""For the optional apps of this package: each is called in the event loop after each call. It must not block.

It gets what makes the record, the server object, and the parameters of the request.
"""

call_finished = Signal()
"""Sent after each call with the arguments ``sender``, the server object, and ``record``, a ``CallRecord``.

Receivers run one after the other in one thread, after the answer was handed to the client.

Example:
    >>> @receiver(call_finished)
    ... def warn_of_slow_calls(sender, record, **kwargs):
    ...     if record.duration > 5:
    ...         logger.warning("%s took %.1f seconds", record.name, record.duration)
"""
