"""How a call ended, and why: from its result, or from the exception that ended it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import (
    ResourceError,
    ResourceNotFoundError,
    ToolError,
    UnexpectedResourceError,
    UnexpectedToolError,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, URL_ELICITATION_REQUIRED
from pydantic import ValidationError

from mcp_serving import current_request
from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.signals import Outcome

if TYPE_CHECKING:
    from mcp.server.context import HandlerResult

    from mcp_serving.current_request import CallNotes

P = ParamSpec("P")
T = TypeVar("T")


class Refused(Exception):
    """The cause of an error with which a call was refused.

    Args:
        reason: a value of ``CallRecord.reason``.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


def noting_outcome(method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let ``method`` note the outcome that the SDK hides in its answer. Of nested calls, the outermost counts."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        notes = current_request.get().call
        if notes is None:
            return await method(*args, **kwargs)
        try:
            result = await method(*args, **kwargs)
        except Exception as error:
            notes.outcome = outcome_of(error)
            raise
        notes.outcome = None
        return result

    return call


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """The outcome of a call that ended with an exception, and the reason."""
    if isinstance(error, ValidationError):  # of the parameters: see call_isolation
        return Outcome.REFUSED, "arguments"
    cause = error.__cause__
    match cause:
        case Refused():
            return Outcome.REFUSED, cause.reason
        case NoElicitation():
            return Outcome.REFUSED, "elicitation"
        case UserDeclined():
            return Outcome.DECLINED, ""
        case UserCanceled():
            return Outcome.DECLINED, "canceled"
    match error:
        case UnexpectedToolError() | UnexpectedResourceError():
            return Outcome.FAILED, _class_of(error)
        case ToolError():
            return (Outcome.REFUSED, "arguments") if isinstance(cause, ValidationError) else (Outcome.TOOL_ERROR, "")
        case ResourceNotFoundError():
            return Outcome.REFUSED, "unknown"
        case ResourceError():
            return Outcome.TOOL_ERROR, ""
        case MCPError():
            return _outcome_of_code(error)
    return Outcome.FAILED, _class_of(error)


def _outcome_of_code(error: MCPError) -> tuple[Outcome, str]:
    code = error.error.code
    if code == INVALID_PARAMS:
        return Outcome.REFUSED, "arguments"
    if code == METHOD_NOT_FOUND:
        return Outcome.REFUSED, "unknown"
    if code == URL_ELICITATION_REQUIRED:
        return Outcome.ASKED, ""
    return (Outcome.FAILED, _class_of(error)) if code == INTERNAL_ERROR else (Outcome.TOOL_ERROR, "")


def _class_of(error: BaseException) -> str:
    """The class of the exception that a handler raised, which the SDK and this package have wrapped."""
    while error.__cause__ is not None and (
        isinstance(error, UnexpectedToolError | UnexpectedResourceError | MCPError)
        or (isinstance(error, ValueError) and str(error).startswith("Error rendering prompt"))
    ):
        error = error.__cause__
    return type(error).__name__


def outcome_without_result(notes: CallNotes, error: BaseException) -> tuple[Outcome, str]:
    """The outcome and the reason of a request that ended with an exception."""
    if not isinstance(error, Exception):
        in_flight = current_request.get().in_flight
        return (Outcome.CUT if in_flight is not None and in_flight.draining else Outcome.CANCELLED), ""
    return notes.outcome or outcome_of(error)


def outcome_of_result(notes: CallNotes, result: HandlerResult) -> tuple[Outcome, str]:
    """The outcome and the reason of a request with a result."""
    if notes.outcome is not None:
        return notes.outcome
    # Most results are a dict, and the class of pydantic's models is slow to ask.
    answer = result or {} if isinstance(result, dict | None) else result.model_dump(by_alias=True)
    if answer.get("isError"):
        return Outcome.TOOL_ERROR, ""
    return (Outcome.ASKED if answer.get("resultType") == "input_required" else Outcome.OK), ""
