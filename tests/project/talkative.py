import atexit
import sys

from mcp.server.mcpserver import MCPServer

print("printed while the server module was imported", flush=True)
sys.stdout.write("written while the server module was imported, without a flush")
server = MCPServer("talkative-server")


@server.tool()
def echo(text: str) -> str:
    return text


@atexit.register
def report() -> None:
    loaded = [name for name in ("daphne", "twisted") if name in sys.modules]
    print(f"of Daphne and Twisted it has loaded {loaded}")
