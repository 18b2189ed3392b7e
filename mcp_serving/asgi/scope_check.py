"""Answers 403 to a call whose token lacks a scope, before the SDK begins a response that cannot be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.auth.middleware.auth_context import get_access_token
from starlette.requests import Request

from mcp_serving.call_records import record_refusal

if TYPE_CHECKING:
    from mcp_types import JSONRPCRequest
    from starlette.types import ASGIApp, Scope

    from mcp_serving.security.access import Access
    from mcp_serving.tools.visibility import PermissionCheckingServer


class ScopeCheck:
    """Checks that the token of a call has the scopes that the call needs.

    Args:
        server: the server, which knows the scopes of its tools, resources and prompts.
        access: makes the response that asks the client for another token.
    """

    def __init__(self, server: PermissionCheckingServer, access: Access) -> None:
        self._server = server
        self._access = access

    def concerns(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and get_access_token() is not None and bool(self._server.scopes)

    async def refusal(self, scope: Scope, request: JSONRPCRequest | None) -> ASGIApp | None:
        token = get_access_token()
        if request is None or token is None:
            return None
        missing = await self._server.missing_scopes(request, scope["user"], token.scopes)
        if not missing:
            return None
        record_refusal(self._server, request, Request(scope), "scope")
        return self._access.insufficient_scope(scope, token, missing)
