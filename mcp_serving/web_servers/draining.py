"""What still gets through while a shutdown drains: a client's part in a call that is in flight.

A call of a session up to 2025-11-25 may ask its client something, and the answer comes as a request of its own,
for which a browser may first ask whether it may send it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

from mcp_serving.web_servers.request_body import read_body, with_body

if TYPE_CHECKING:
    from starlette.types import Receive, Scope


async def let_through(scope: Scope, receive: Receive) -> Receive | None:
    """Where the request may be about a call that is in flight, its body to be received; else None."""
    return receive if _is_preflight(scope) else await _answer_of_a_session(scope, receive)


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


async def _answer_of_a_session(scope: Scope, receive: Receive) -> Receive | None:
    """For a POST of a session that asks for nothing new, its body to be received again; else None.

    An answer to the server's question, or a notification such as a cancellation.
    """
    if scope["method"] != "POST" or not _has_session(scope):
        return None
    body = await read_body(receive, DEFAULT_MAX_REQUEST_BODY_SIZE)
    if body is None or _asks_for_something(body):
        return None
    return with_body(body, receive)


def _has_session(scope: Scope) -> bool:
    return any(name == MCP_SESSION_ID_HEADER.encode() for name, _ in scope["headers"])


def _asks_for_something(body: bytes) -> bool:
    try:
        return isinstance(jsonrpc_message_adapter.validate_json(body, by_name=False), JSONRPCRequest)
    except ValueError:
        return True
