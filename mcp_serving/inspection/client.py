"""The SDK's client, connected to a server in this process as a Django user, or to a running server by its URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_serving import current_request, sdk
from mcp_serving.runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

URL_TIMEOUT = httpx2.Timeout(30.0, read=300.0)
"""Seconds. A tool may take minutes before its first answer, as the SDK's own client allows."""


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
        with current_request.updated(local_user=user):
            return await call_next(ctx)

    view = await Runtime.of(sdk.low_level(mcp)).open()
    view.middleware.insert(0, as_user)
    with ungrouped_errors() as body:
        async with Client(view, **options) as client:
            with body:
                yield client


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
    with ungrouped_errors() as body:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=URL_TIMEOUT) as http_client,
            Client(streamable_http_client(url, http_client=http_client), **options) as client,
        ):
            with body:
                yield client


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
