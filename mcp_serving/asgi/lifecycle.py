"""Starting and closing handlers where no ``Server`` does it: ASGI lifespan, plain ``daphne``."""

from __future__ import annotations

import asyncio
import logging
import sys
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
_closed_with_daphne: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


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


def close_with_daphne() -> None:
    """Under plain ``daphne``, which has no lifespan: close when its reactor stops.

    Looked up, not imported: where Daphne does not run the loop, nobody needs it.
    """
    loop = asyncio.get_running_loop()
    daphne = sys.modules.get("daphne.server")
    if daphne is None or daphne.twisted_loop is not loop or loop in _closed_with_daphne:
        return
    _closed_with_daphne.add(loop)
    from twisted.internet import reactor as installed_reactor
    from twisted.internet.defer import Deferred

    def closed() -> Deferred[None]:
        return Deferred.fromFuture(loop.create_task(close()))

    reactor: Any = installed_reactor
    reactor.addSystemEventTrigger("before", "shutdown", closed)
