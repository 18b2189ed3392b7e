"""The SDK's client, connected to a server in this process as a Django user, or to a running server by its URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import METHOD_NOT_FOUND, ElicitRequest, ErrorData

from mcp_serving import current_request, sdk
from mcp_serving.runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

URL_TIMEOUT = httpx2.Timeout(30.0, read=300.0)
"""Seconds. A tool may take minutes before its first answer, as the SDK's own client allows."""

_WITHOUT_REASON = "Server returned an error response"
"""The message of the SDK's client for each HTTP error that has no JSON-RPC error in its body."""


@asynccontextmanager
async def connect(mcp: sdk.SDKServer, *, user: Any = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a server in this process, which calls with the permissions of a Django user.

    The client shares the lifespan of the server with everything else that serves it in this event loop. An error
    is what a client over HTTP receives: the text of an unexpected exception stays in the log.

    Args:
        mcp: the server.
        user: the Django user that calls; anonymous if None.
        **options: further options of the SDK's ``Client``.

    Raises:
        Exception: whatever the lifespan of the server raised while it was entered.

    Example:
        >>> async with connect(server, user=clerk) as client:
        ...     tools = await client.list_tools()
    """

    async def as_user(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if (ask := options.get("elicitation_callback")) is not None:
            sdk.answer_requests(ctx.session, _answering(ask))
        with current_request.updated(local_user=user):
            return await call_next(ctx)

    view = await Runtime.of(sdk.low_level(mcp)).open()
    view.middleware.insert(0, as_user)
    with ungrouped_errors() as body:
        async with Client(view, **options) as client:
            with body:
                yield client


def _answering(ask: Any) -> Callable[[Any], Awaitable[Any]]:
    """Answers questions of ``ctx.elicit``, in the middle of a call. Protocol 2026-07-28 does not allow them."""

    async def answer(request: Any) -> Any:
        if not isinstance(request, ElicitRequest):
            raise MCPError(
                METHOD_NOT_FOUND,
                f"The tool asked its client for {request.method}, which is not available here: try it with a client up "
                "to 2025-11-25 that offers it.",
            )
        given = await ask(None, request.params)
        if isinstance(given, ErrorData):
            raise MCPError.from_error_data(given)
        return given

    return answer


@asynccontextmanager
async def connect_to_url(url: str, *, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a running server.

    Args:
        url: the address of its MCP endpoint.
        token: a bearer token to send with each request.
        **options: further options of the SDK's ``Client``.

    Raises:
        MCPError, OSError: the server cannot be reached, or refused the client.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    refused: list[httpx2.Response] = []

    async def note_refusal(response: httpx2.Response) -> None:
        if response.is_error:
            refused[:] = [response]

    hooks = {"response": [note_refusal]}
    try:
        with ungrouped_errors() as body:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=URL_TIMEOUT, event_hooks=hooks) as http_client,
                Client(streamable_http_client(url, http_client=http_client), **options) as client,
            ):
                with body:
                    yield client
    except MCPError as error:
        if not refused or error.message != _WITHOUT_REASON:
            raise
        status, challenge = refused[0].status_code, refused[0].headers.get("WWW-Authenticate")
        reason = f": {challenge}" if challenge else ""
        raise MCPError(
            error.code, f"The server answered with HTTP {status} {refused[0].reason_phrase}{reason}"
        ) from error


@contextmanager
def ungrouped_errors() -> Iterator[AbstractContextManager[None]]:
    """Raise the error of the block itself, which the task groups of a client would wrap in exception groups.

    An error outside of the block, such as a failed connection, is raised alone if it is the only one.
    """
    failures: list[BaseException] = []

    @contextmanager
    def body() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            failures.append(error)
            raise

    try:
        yield body()
    except BaseExceptionGroup as group:
        error: BaseException = failures[0] if failures else group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
