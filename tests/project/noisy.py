import fcntl
import os

from mcp.server.mcpserver import MCPServer

from tests.project import mcp
from tests.project.notes import note

server = MCPServer("noisy-server", lifespan=mcp.lifespan)


@server.tool()
def fill_standard_error() -> str:
    """Writes until its pipe takes no more."""
    flags = fcntl.fcntl(2, fcntl.F_GETFL)
    fcntl.fcntl(2, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(2, b"x" * 4096)
    except BlockingIOError:
        pass
    finally:
        fcntl.fcntl(2, fcntl.F_SETFL, flags)
    note("standard error is full")
    return "full"
