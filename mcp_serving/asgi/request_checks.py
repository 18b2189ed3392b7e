"""Checks of a request before the SDK gets it. Its body is read and parsed once for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from mcp_serving.web_servers.request_body import TOO_LARGE, read_body, with_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class RequestCheck(Protocol):
    """One check of the requests for the MCP endpoint."""

    def concerns(self, scope: Scope) -> bool:
        """Whether this check applies to a request with this scope."""

    async def refusal(self, scope: Scope, request: JSONRPCRequest | None) -> ASGIApp | None:
        """The application that answers in place of the endpoint; None if the request may go on.

        Args:
            scope: the scope of the request.
            request: the JSON-RPC request in the body. None for other messages, for GET, and for a body that the SDK
                refuses.
        """


class RequestChecks:
    """An ASGI application around the MCP endpoint.

    Args:
        app: the endpoint.
        checks: the checks, in the order in which they run.
        max_body_size: the limit of the body, in bytes.
    """

    def __init__(self, app: ASGIApp, checks: Sequence[RequestCheck], max_body_size: int) -> None:
        self._app = app
        self._checks = checks
        self._max_body_size = max_body_size

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        checks = [check for check in self._checks if check.concerns(scope)]
        return self._serve_checked(checks, scope, receive, send) if checks else self._app(scope, receive, send)

    async def _serve_checked(self, checks: Sequence[RequestCheck], scope: Scope, receive: Receive, send: Send) -> None:
        request = None
        if scope["method"] == "POST":
            body = await read_body(receive, self._max_body_size)
            if body is None:  # or the client has left, and nobody reads the answer
                await TOO_LARGE(scope, receive, send)
                return
            receive, request = with_body(body, receive), _request_in(body)
        for check in checks:
            if (refusal := await check.refusal(scope, request)) is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _request_in(body: bytes) -> JSONRPCRequest | None:
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError:
        return None
    return message if isinstance(message, JSONRPCRequest) else None
