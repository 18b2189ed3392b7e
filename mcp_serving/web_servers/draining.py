"""The requests that are still served while a shutdown waits for calls in flight.

A call of a session up to 2025-11-25 may ask its client a question. The answer comes as another request, and a browser
may send a preflight request before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

from mcp_serving.web_servers.request_body import MAX_VALUES, has_more_values, read_body, with_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope


async def belongs_to_a_call(scope: Scope, receive: Receive) -> Receive | None:
    """``receive`` for a request that may belong to a call in flight; None for any other request."""
    return receive if _is_preflight(scope) else await _message_without_request(scope, receive)


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


async def _message_without_request(scope: Scope, receive: Receive) -> Receive | None:
    """``receive`` for a POST of a session that is no JSON-RPC request: an answer to a question, or a notification."""
    if scope["method"] != "POST" or not _has_session(scope):
        return None
    body = await read_body(receive, DEFAULT_MAX_REQUEST_BODY_SIZE)
    if body is None or has_more_values(body, MAX_VALUES) or _is_request(body):
        return None
    return with_body(body, receive)


def _has_session(scope: Scope) -> bool:
    return any(name == MCP_SESSION_ID_HEADER.encode() for name, _ in scope["headers"])


def _is_request(body: bytes) -> bool:
    """Whether a body is a JSON-RPC request, or no JSON-RPC message at all."""
    try:
        return isinstance(jsonrpc_message_adapter.validate_json(body, by_name=False), JSONRPCRequest)
    except ValueError:
        return True
