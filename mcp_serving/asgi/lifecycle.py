"""Starting and closing handlers where no ``Server`` does it: ASGI lifespan, plain ``daphne``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mcp_serving.deadline import Deadline
from mcp_serving.runtime import Runtime, runtimes

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer

    from mcp_serving.asgi.handler import StreamableHTTPHandler

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long closing may take where no ``Server`` gives a deadline."""

_handlers: WeakSet[StreamableHTTPHandler] = WeakSet()


def register(handler: StreamableHTTPHandler) -> None:
    _handlers.add(handler)


def handlers_of(server: LowLevelServer[Any]) -> list[StreamableHTTPHandler]:
    """The handlers that were made for this server and still exist."""
    return [handler for handler in _handlers if handler.server is server]


async def start(server: LowLevelServer[Any]) -> LowLevelServer[Any]:
    """Enter the server's lifespan and start each of its handlers; the server for a further transport to serve.

    Raises:
        Exception: whatever the lifespan raised while it was entered.
    """
    for handler in handlers_of(server):
        await handler.start()
    return await Runtime.of(server).open()


async def close() -> None:
    """Close every runtime of the running event loop; what fails is logged and does not stop the rest."""
    deadline = Deadline(CLOSE_SECONDS)
    for runtime in runtimes():
        try:
            await runtime.close(deadline)
        except Exception:
            logger.exception("The lifespan of the MCP server failed while it was left.")
