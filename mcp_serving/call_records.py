"""One record for each finished call, for the log, the signal ``call_finished``, and the optional apps."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pydantic_core
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CLIENT_INFO_META_KEY, JSONRPCRequest

from mcp_serving import current_request, sdk
from mcp_serving.call_outcomes import outcome_of_result, outcome_without_result
from mcp_serving.current_request import CallNotes, CurrentRequest
from mcp_serving.logs import escaped
from mcp_serving.record_queue import RecordQueue
from mcp_serving.signals import CallRecord, MakeRecord, Outcome, call_finished, listeners
from mcp_serving.users import user_of

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.requests import Request

logger = logging.getLogger("mcp_serving.calls")
_package_logger = logging.getLogger("mcp_serving")

METHODS = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
"""The methods whose requests are calls."""

MAX_TEXT = 200
"""Characters that a record keeps of each text from a client."""


def _send_signals(batch: Sequence[tuple[Any, MakeRecord]]) -> None:
    for sender, make_record in batch:
        try:
            call_finished.send_robust(sender=sender, record=make_record())  # it logs each Exception of a receiver
        except BaseException:  # SystemExit, for example
            logging.getLogger(__name__).exception("A receiver of call_finished failed.")


_signals: RecordQueue[tuple[Any, MakeRecord]] = RecordQueue("signals of finished calls", _send_signals, delay=0.1)


def are_wanted() -> bool:
    """Whether an app, a receiver of the signal or the log wants records. If not, nothing is measured."""
    return bool(listeners or call_finished.receivers or _lines_are_wanted())


def _lines_are_wanted() -> bool:
    """Whether the level of the logger, or of the logger ``mcp_serving``, is set to INFO or lower.

    The level of the root logger does not count. The SDK's server class sets it to INFO, with a handler that writes to
    standard error. Over stdio, some clients never read standard error. The process would block after some hundred
    lines.
    """
    return bool(logger.level or _package_logger.level) and logger.isEnabledFor(logging.INFO)


class RunningCalls:
    """The running calls of one server that will have a record.

    Args:
        server: the MCP server.
    """

    def __init__(self, server: LowLevelServer[Any]) -> None:
        self._sender = sdk.outer(server)
        self._running: dict[_Call, None] = {}

    async def record(
        self,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
        answer: Callable[[ServerRequestContext[Any, Any], CallNext], Awaitable[HandlerResult]],
    ) -> HandlerResult:
        """Answer a request with ``answer``, a middleware of the SDK, and publish its record."""
        call = _Call(ctx)
        self._running[call] = None
        try:
            with current_request.updated(call=call.notes):
                result = await answer(ctx, call_next)
        except BaseException as error:
            self._finish(call, *outcome_without_result(call.notes, error))
            raise
        self._finish(call, *outcome_of_result(call.notes, result), result)
        return result

    def cut(self) -> None:
        """Publish the records of the calls that a shutdown has abandoned."""
        for call in list(self._running):
            self._finish(call, Outcome.CUT, "")

    def _finish(self, call: _Call, outcome: Outcome, reason: str, result: HandlerResult = None) -> None:
        if call not in self._running:  # it was abandoned before
            return
        del self._running[call]
        try:
            _publish(call.finished(outcome, reason, result), self._sender, call.ctx.params)
        except Exception:  # of the user object, for example
            logging.getLogger(__name__).exception("A call could not be recorded.")


class _Call:
    """A call that runs."""

    __slots__ = ("_began", "_current", "_started", "_token", "ctx", "notes")

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self.ctx = ctx
        self.notes = CallNotes()
        self._current = current_request.get()
        self._token = get_access_token()
        self._started = time.time()
        self._began = time.perf_counter()

    def finished(self, outcome: Outcome, reason: str, result: HandlerResult) -> MakeRecord:
        """What makes the record. It keeps only short texts and numbers of the call."""
        ctx, notes, current = self.ctx, self.notes, self._current
        duration = time.perf_counter() - self._began
        client = None if (params := ctx.session.client_params) is None else params.client_info
        return partial(
            _record,
            started=self._started,
            method=ctx.method,
            name=_name(ctx.params or {}),
            outcome=outcome,
            reason=reason,
            duration=duration,
            thread_wait=notes.thread_wait,
            answer_size=_size(result) if notes.answer_size is None else notes.answer_size,
            transport=transport_of(ctx, current),
            protocol_version=str(ctx.protocol_version)[:MAX_TEXT],
            request_id=str(ctx.request_id)[:MAX_TEXT],
            session=current.session_nonce or None,
            client=None if client is None else client.name[:MAX_TEXT],
            client_version=None if client is None else client.version[:MAX_TEXT],
            **_caller(user_of(current, ctx.request), self._token),
        )


def record_refusal(server: sdk.SDKServer, request: JSONRPCRequest, http_request: Request, reason: str) -> None:
    """Publish the record of a call that was refused before the SDK has read it.

    Args:
        server: the server object.
        request: the call.
        http_request: the HTTP request with the call.
        reason: a value of ``CallRecord.reason``.
    """
    if request.method not in METHODS or not are_wanted():
        return
    params = request.params or {}
    meta = params.get("_meta")
    client = meta.get(CLIENT_INFO_META_KEY) if isinstance(meta, dict) else None
    client = client if isinstance(client, dict) else {}
    make_record = partial(
        _record,
        started=time.time(),
        method=request.method,
        name=_name(params),
        outcome=Outcome.REFUSED,
        reason=reason,
        duration=0.0,
        thread_wait=0.0,
        answer_size=0,
        transport="http",
        protocol_version=http_request.headers.get(MCP_PROTOCOL_VERSION_HEADER, "")[:MAX_TEXT],
        request_id=str(request.id)[:MAX_TEXT],
        session=None,
        client=str(client["name"])[:MAX_TEXT] if "name" in client else None,
        client_version=str(client["version"])[:MAX_TEXT] if "version" in client else None,
        **_caller(user_of(current_request.get(), http_request), get_access_token()),
    )
    _publish(make_record, server, params)


def _caller(user: AbstractBaseUser | None, token: AccessToken | None) -> dict[str, str | None]:
    return {
        "user": None if user is None else str(user.get_username())[:MAX_TEXT],
        "user_id": None if user is None else str(user.pk)[:MAX_TEXT],
        "token": None if token is None else token.client_id[:MAX_TEXT],
    }


def _record(*, started: float, **others: Any) -> CallRecord:
    """Make a record from its fields. The texts have at most ``MAX_TEXT`` characters.

    A thread makes the records of many calls one after another. Between the steps of a call, this takes several times as
    long, because the processor's caches hold hardly anything of it then.
    """
    fields: dict[str, Any] = {
        name: _printable(value) if type(value) is str else value for name, value in others.items()
    }
    return CallRecord(started=datetime.fromtimestamp(started, UTC), **fields)


def transport_of(ctx: ServerRequestContext[Any, Any], current: CurrentRequest) -> str:
    """How a request came: http, stdio or in-process."""
    if ctx.request is not None:
        return "http"
    # The console serves HTTP itself: its call is within the request of a page.
    return "in-process" if current.in_flight is None or current.in_flight.connection is not None else "stdio"


def _name(params: Mapping[str, Any]) -> str:
    ref = params.get("ref")
    params = ref if isinstance(ref, dict) else params
    return str(params.get("name") or params.get("uri") or "")[:MAX_TEXT]


def _printable(text: str) -> str:
    return text if text.isprintable() else escaped(text)[:MAX_TEXT]


def _size(result: HandlerResult) -> int:
    if result is None:
        return 0
    try:
        return len(pydantic_core.to_json(result))
    except ValueError:  # a lone surrogate, which the SDK escapes
        return len(repr(result))


# Delivery of a record

_EXTRA = [f"mcp_{field}" for field in CallRecord._fields]


def _publish(make_record: MakeRecord, sender: Any, params: Mapping[str, Any] | None) -> None:
    if _lines_are_wanted():
        record = make_record()
        extra = dict(zip(_EXTRA, record, strict=True))
        extra |= {"mcp_outcome": str(record.outcome), "mcp_started": record.started.isoformat()}
        logger.info(
            "%s %s: %s%s, %.1f ms, user %s, client %s",
            record.method,
            record.name,
            record.outcome,
            f" ({record.reason})" if record.reason else "",
            record.duration * 1000,
            record.user,
            record.client,
            extra=extra,
        )
    for listener in listeners:
        listener(make_record, sender, params)
    if call_finished.receivers:
        _signals.put((sender, make_record))
