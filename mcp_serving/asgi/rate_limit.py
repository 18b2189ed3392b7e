"""Refuses the requests of a caller who makes more than the rate of the handler allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_types import INTERNAL_ERROR
from starlette.requests import Request
from starlette.responses import Response

from mcp_serving.call_records import record_refusal
from mcp_serving.rate_limits.limiter import caller_of, refusal
from mcp_serving.tools.visibility import PermissionCheckingServer
from mcp_serving.web_servers.responses import Refusal
from mcp_serving.workers.json_rpc import error_body

if TYPE_CHECKING:
    from mcp_types import JSONRPCRequest
    from starlette.types import ASGIApp, Scope

    from mcp_serving.rate_limits.rate import Rate
    from mcp_serving.sdk import SDKServer

logger = logging.getLogger(__name__)


class RateLimit:
    """The rate of a handler.

    It counts JSON-RPC requests, and GET requests, which open streams. It does not count notifications. It does not
    count answers to questions, because they belong to a call that was counted.

    Args:
        server: the MCP server.
        rate: the rate of the handler.
        place: returns where the handler is mounted.
    """

    def __init__(self, server: SDKServer, rate: Rate, place: Callable[[], str]) -> None:
        self._server = server
        self._rate = rate
        self._place = place

    def concerns(self, scope: Scope) -> bool:
        return scope["method"] in ("GET", "POST")

    async def refusal(self, scope: Scope, request: JSONRPCRequest | None) -> ASGIApp | None:
        if request is None and scope["method"] == "POST":
            return None
        call = None
        if request is not None and isinstance(self._server, PermissionCheckingServer):
            call = self._server.continued_call(request.params)
        refused = await refusal(self._rate, f"handler at {self._place()}", caller_of(scope), call)
        if refused is None:
            return None
        logger.info(
            "Refused a request for %.200r: its caller has reached the rate of %s.", scope["path"], self._rate.words
        )
        headers = {"retry-after": str(refused.seconds)}
        if request is None:
            return Refusal(refused.status, refused.text, headers=headers)
        record_refusal(self._server, request, Request(scope), "rate")
        body = error_body(request.id, INTERNAL_ERROR, refused.text)
        return Response(body, refused.status, headers, "application/json")
