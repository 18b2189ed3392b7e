"""Refuses the requests of a caller who makes more than the rate of the handler allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_types import INTERNAL_ERROR, JSONRPCRequest
from starlette.requests import Request
from starlette.responses import Response

from mcp_serving.asgi.scope_check import request_in
from mcp_serving.call_records import record_refusal
from mcp_serving.rate_limits.limiter import caller_of, refusal
from mcp_serving.tools.visibility import PermissionCheckingServer
from mcp_serving.web_servers.request_body import read_body, with_body
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.json_rpc import error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_serving.rate_limits.rate import Rate
    from mcp_serving.sdk import SDKServer

logger = logging.getLogger(__name__)

_TOO_LARGE = Refusal(413, "The request body is too large.")


class RateLimitMiddleware:
    """An ASGI middleware around the MCP endpoint.

    It counts JSON-RPC requests, and GET requests, which open streams. It does not count notifications and answers to
    questions: they belong to a call that was counted.

    Args:
        app: the endpoint.
        server: the MCP server.
        rate: of the handler.
        place: returns where the handler is mounted.
        max_body_size: in bytes.
    """

    def __init__(
        self, app: ASGIApp, server: SDKServer, rate: Rate, place: Callable[[], str], max_body_size: int
    ) -> None:
        self._app = app
        self._server = server
        self._rate = rate
        self._place = place
        self._max_body_size = max_body_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, counts = None, scope["method"] == "GET"
        if scope["method"] == "POST":
            body = await read_body(receive, self._max_body_size)
            if body is None:  # or the client has left, and nobody reads the answer
                await _TOO_LARGE(scope, receive, send)
                return
            receive = with_body(body, receive)
            request = request_in(body)
            counts = request is not None
        refused = await self._refusal(scope, request) if counts else None
        await (self._app if refused is None else refused)(scope, receive, send)

    async def _refusal(self, scope: Scope, request: JSONRPCRequest | None) -> ASGIApp | None:
        call = None
        if request is not None and isinstance(self._server, PermissionCheckingServer):
            call = self._server.continued_call(request.params)
        refused = await refusal(self._rate, f"handler at {self._place()}", caller_of(scope), call)
        if refused is None:
            return None
        logger.info("Refused a request for %.200r: its caller has made %s.", scope["path"], self._rate.words)
        headers = {"retry-after": str(refused.seconds)}
        if request is None:
            return Refusal(refused.status, refused.text, headers=headers)
        record_refusal(self._server, request, Request(scope), "rate")
        body = error_body(request.id, INTERNAL_ERROR, refused.text)
        return Response(body, refused.status, headers, "application/json")
