"""A server whose calls are recorded: a receiver of ``call_finished`` notes each record, and another one fails."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_users")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

import anyio
from django.contrib.auth.models import User
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import Completion

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.signals import call_finished
from tests.project.callers import user_from_header
from tests.project.notes import note

server = MCPServer("recorded", max_threads=1)


def fail(**_: Any) -> None:
    raise SystemExit("a broken receiver")


def note_record(sender: Any, record: Any, **_: Any) -> None:
    thread = threading.current_thread()
    assert thread is not threading.main_thread()
    User.objects.count()  # a receiver may use the ORM
    note(json.dumps(record._asdict(), default=str))


if os.environ.get("TEST_RECORDS", "1") == "1":
    # Only for this server: other tests in the process that imports this module have servers of their own.
    call_finished.connect(note_record, sender=server)
    if os.environ.get("TEST_BROKEN_RECEIVER") == "1":
        call_finished.connect(fail, sender=server)


def said(word: str) -> bool:
    path = Path(os.environ["TEST_NOTES"])
    return path.exists() and word in path.read_text().split()


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def broken() -> str:
    raise LookupError("the secret")


@server.tool()
def sold_out() -> str:
    raise ToolError("Sold out.")


@server.tool(record_arguments=["card"])
def pay(card: str, amount: int, note: str = "") -> str:
    return "paid"


@server.tool(permission="auth.view_user")
def hidden() -> str:
    return "seen"


@server.tool(scopes=["write"])
def scoped() -> str:
    return "written"


@server.write_tool(confirm="Erase it?")
def erase() -> str:
    return "erased"


@server.tool()
async def calls_hidden() -> str:
    """Its own outcome counts, not that of the call in it."""
    try:
        await server.call_tool("missing", {})
    except ToolError:
        return "survived"
    raise AssertionError


@server.tool()
async def slow() -> str:
    note("slow runs")
    while not said("go"):  # noqa: ASYNC110 - the event is a file of the test
        await anyio.sleep(0.02)
    return "done"


@server.tool()
async def shielded() -> str:
    """Cannot be cancelled."""
    note("shielded runs")
    with anyio.CancelScope(shield=True):
        while not said("go"):  # noqa: ASYNC110 - the event is a file of the test
            await anyio.sleep(0.02)
    return "done"


@server.tool()
def hold() -> str:
    """Holds the only thread."""
    note("hold runs")
    while not said("go"):
        time.sleep(0.02)
    return "done"


@server.resource("recorded://one")
def one() -> str:
    return "one"


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}."


@server.completion()
def complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=["Ann"])


class Tokens:
    """``NAME-read`` and ``NAME-write`` are tokens of a user with one scope."""

    async def verify_token(self, token: str) -> AccessToken | None:
        name, _, scope = token.partition("-")
        return AccessToken(token=token, client_id=f"app of {name}", scopes=[scope], subject=name)

    async def user_for_token(self, token: AccessToken) -> Any:
        return await User.objects.filter(username=token.subject).afirst()


handlers = {
    "mcp": StreamableHTTPHandler(server, public=True),
    "json": StreamableHTTPHandler(server, public=True, json_response=True),
    "token": StreamableHTTPHandler(server, auth=Tokens()),
}
routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
application = ProtocolTypeRouter({"http": user_from_header(URLRouter(routes)), "lifespan": handlers["mcp"].lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
