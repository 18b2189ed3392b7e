"""Answers 403 to a call whose token lacks a scope, before the SDK begins a response that cannot be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError
from starlette.requests import Request

from mcp_serving.call_records import record_refusal
from mcp_serving.web_servers.request_body import read_body, with_body
from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.security.access import Access
    from mcp_serving.tools.visibility import PermissionCheckingServer

_TOO_LARGE = Refusal(413, "The request body is too large.")


class ScopeCheck:
    """An ASGI application around the MCP endpoint of one server.

    Args:
        app: the endpoint.
        server: knows the scopes of its tools, resources and prompts.
        access: makes the response that asks the client for another token.
        max_body_size: in bytes.
    """

    def __init__(self, app: ASGIApp, server: PermissionCheckingServer, access: Access, max_body_size: int) -> None:
        self._app = app
        self._server = server
        self._access = access
        self._max_body_size = max_body_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = get_access_token()
        if token is None or scope["method"] != "POST" or not self._server.scopes:
            await self._app(scope, receive, send)
            return
        body = await read_body(receive, self._max_body_size)
        if body is None:  # or the client has left, and nobody reads the answer
            await _TOO_LARGE(scope, receive, send)
            return
        message = request_in(body)
        missing = await self._server.missing_scopes(message, scope["user"], token.scopes) if message else []
        app = self._app
        if message and missing:
            app = self._access.insufficient_scope(scope, token, missing)
            record_refusal(self._server, message, Request(scope), "scope")
        await app(scope, with_body(body, receive), send)


def request_in(body: bytes) -> JSONRPCRequest | None:
    """The request in a body; None for other messages, and for a body that the SDK refuses."""
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return None
    return message if isinstance(message, JSONRPCRequest) else None
