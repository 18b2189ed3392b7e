"""JSON-RPC messages in HTTP bodies, where the SDK neither parses nor writes them: relayed calls, ended sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_types import ErrorData, JSONRPCError
from pydantic_core import from_json


@dataclass(frozen=True, slots=True)
class RequestInBody:
    """A JSON-RPC request."""

    id: int | str
    method: str
    params: Any


def request_in(body: bytes) -> RequestInBody | None:
    """The JSON-RPC request in a body; None if there is no request with a valid id in it."""
    try:
        message: Any = from_json(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
        return None
    request_id = message.get("id")
    if not isinstance(request_id, int | str) or isinstance(request_id, bool):
        return None
    return RequestInBody(request_id, method, message.get("params"))


def error_body(request_id: int | str, code: int, text: str) -> bytes:
    """The error response to a request."""
    error = JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text))
    return error.model_dump_json(by_alias=True, exclude_none=True).encode()


def error_event(request_id: int | str, code: int, text: str) -> bytes:
    """The error response to a request, as a server-sent event."""
    return b"event: message\r\ndata: %s\r\n\r\n" % error_body(request_id, code, text)


def is_response_event(event: bytes, request_id: int | str) -> bool:
    """Whether a server-sent event is the response to a request."""
    _, _, data = event.partition(b"data: ")
    try:
        message: Any = from_json(data.strip())
    except ValueError:
        return False
    return isinstance(message, dict) and "method" not in message and message.get("id") == request_id
