"""One record for each finished call, for the log, the signal ``call_finished``, and the optional apps."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
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
from mcp_serving.signals import CallRecord, Outcome, call_finished, listeners
from mcp_serving.users import user_of

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from mcp.server.auth.provider import AccessToken
    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.requests import Request

logger = logging.getLogger("mcp_serving.calls")
_package_logger = logging.getLogger("mcp_serving")

METHODS = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
"""The methods whose requests are calls."""

MAX_TEXT = 200
"""Characters that a record keeps of each text from a client."""


def _send_signals(batch: Sequence[tuple[Any, CallRecord]]) -> None:
    for sender, record in batch:
        try:
            call_finished.send_robust(sender=sender, record=record)  # it logs each Exception of a receiver
        except BaseException:  # SystemExit, for example
            logging.getLogger(__name__).exception("A receiver of call_finished failed.")


_signals: RecordQueue[tuple[Any, CallRecord]] = RecordQueue("signals of finished calls", _send_signals, delay=0.1)


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
        self, ctx: ServerRequestContext[Any, Any], answer: Callable[[], Awaitable[HandlerResult]]
    ) -> HandlerResult:
        """Answer a request, and publish its record."""
        call = _Call(ctx)
        self._running[call] = None
        try:
            with current_request.updated(call=call.notes):
                result = await answer()
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
            _publish(call.record(outcome, reason, result), self._sender, call.ctx.params)
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

    def record(self, outcome: Outcome, reason: str, result: HandlerResult) -> CallRecord:
        ctx, notes, current, token = self.ctx, self.notes, self._current, self._token
        duration = time.perf_counter() - self._began
        user = user_of(current, ctx.request)
        params = ctx.session.client_params
        return CallRecord(
            started=datetime.fromtimestamp(self._started, UTC),
            method=ctx.method,
            name=_name(ctx.params or {}),
            outcome=outcome,
            reason=reason,
            duration=duration,
            thread_wait=notes.thread_wait,
            answer_size=_size(result) if notes.answer_size is None else notes.answer_size,
            transport=transport_of(ctx, current),
            protocol_version=_text(ctx.protocol_version),
            request_id=_text(ctx.request_id),
            session=current.session_nonce or None,
            client=None if params is None else _text(params.client_info.name),
            client_version=None if params is None else _text(params.client_info.version),
            **_caller(user, token),
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
    record = CallRecord(
        started=datetime.now(UTC),
        method=request.method,
        name=_name(params),
        outcome=Outcome.REFUSED,
        reason=reason,
        duration=0.0,
        thread_wait=0.0,
        answer_size=0,
        transport="http",
        protocol_version=_text(http_request.headers.get(MCP_PROTOCOL_VERSION_HEADER, "")),
        request_id=_text(request.id),
        session=None,
        client=_text(client["name"]) if "name" in client else None,
        client_version=_text(client["version"]) if "version" in client else None,
        **_caller(user_of(current_request.get(), http_request), get_access_token()),
    )
    _publish(record, server, params)


def _caller(user: AbstractBaseUser | None, token: AccessToken | None) -> dict[str, str | None]:
    return {
        "user": None if user is None else _text(user.get_username()),
        "user_id": None if user is None else _text(user.pk),
        "token": None if token is None else _text(token.client_id),
    }


def transport_of(ctx: ServerRequestContext[Any, Any], current: CurrentRequest) -> str:
    """How a request came: http, stdio or in-process."""
    if ctx.request is not None:
        return "http"
    # The console serves HTTP itself: its call is within the request of a page.
    return "in-process" if current.in_flight is None or current.in_flight.connection is not None else "stdio"


def _name(params: Mapping[str, Any]) -> str:
    ref = params.get("ref")
    params = ref if isinstance(ref, dict) else params
    return _text(params.get("name") or params.get("uri") or "")


def _text(value: object) -> str:
    text = str(value)[:MAX_TEXT]
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


def _publish(record: CallRecord, sender: Any, params: Mapping[str, Any] | None) -> None:
    if _lines_are_wanted():
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
        listener(record, sender, params)
    if call_finished.receivers:
        _signals.put((sender, record))
