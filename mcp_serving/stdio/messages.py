"""JSON-RPC messages and the lines that carry them."""

from __future__ import annotations

import logging

import pydantic_core
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

logger = logging.getLogger(__name__)


class InvalidLineError(ValueError):
    """A line is not a JSON-RPC message; ``response`` is the error to send back."""

    def __init__(self, response: JSONRPCError) -> None:
        super().__init__(response.error.message)
        self.response = response


def message_from(line: bytes) -> JSONRPCMessage:
    """The JSON-RPC message on a line.

    Raises:
        InvalidLineError: there is none.
    """
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        raise InvalidLineError(_error_for(line)) from None
    if type(message) is JSONRPCNotification and "id" in pydantic_core.from_json(line):
        # A request with an invalid id, which the SDK takes for a notification: it would never be answered.
        raise InvalidLineError(_error_for(line))
    return message


def line_from(message: JSONRPCMessage) -> bytes:
    """The line for a message. A response that cannot be written as JSON is replaced by an error with its id."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except (ValueError, TypeError) as error:  # such as a lone surrogate
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            raise
        logger.error("The response to request %r cannot be written as JSON: %s", message.id, error)
        return line_from(error_response(message.id, INTERNAL_ERROR, "The response cannot be written as JSON."))


def error_response(request_id: RequestId | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _error_for(line: bytes) -> JSONRPCError:
    try:
        content = pydantic_core.from_json(line)
    except ValueError:
        return error_response(None, PARSE_ERROR, "Parse error: the line is not JSON.")
    request_id = None
    # Only the id of a request belongs to the client. The id of a response is one of the server's.
    if isinstance(content, dict) and "method" in content and type(content.get("id")) in (int, str):
        request_id = content["id"]
    return error_response(request_id, INVALID_REQUEST, "Invalid request: the line is not one JSON-RPC message.")
