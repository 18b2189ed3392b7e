"""A server with one of everything that a client can reach, behind each kind of handler: for tests/test_fuzz*.py."""

import json
import os
from typing import Annotated, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app: Any = get_asgi_application()

import anyio
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolRequestParams, CallToolResult, Completion, TextContent
from pydantic import BaseModel, Field

from mcp_serving import InMemoryEventStore, MCPServer, StreamableHTTPHandler

server = MCPServer("fuzzed", max_threads=4)


class Line(BaseModel):
    number: int = Field(ge=1)
    tags: dict[str, list[str]] = {}


@server.read_tool()
async def echo(value: Any) -> Any:
    # What is nested deeper than pydantic writes is the tool's own failure, if it returns that.
    return value if isinstance(value, str | int | float) else type(value).__name__


@server.read_tool()
def line(line: Line, note: Annotated[str, Field(max_length=50)] = "") -> Line:
    return line


@server.read_tool()
async def region(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return region


@server.read_tool()
async def reports(ctx: Context, times: Annotated[int, Field(le=5)] = 2) -> str:
    for each in range(times):
        await ctx.report_progress(each, times)
    return "reported"


@server.read_tool()
async def wait() -> str:
    await anyio.sleep_forever()
    return "never"


@server.write_tool(confirm="Cancel order {number}?")
async def cancel_order(number: int) -> str:
    return f"order {number} is cancelled"


@server.read_tool(permission=lambda user: False)
async def hidden() -> str:
    raise AssertionError("nobody may")


@server.resource("item://first")
async def first() -> str:
    return "the first"


@server.resource("item://{name}")
def item(name: str) -> str:
    return name


@server.prompt()
async def greet(name: str, times: int = 1) -> str:
    return f"Greet {name}" * min(times, 3)


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=[argument.value])


async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=repr(params.arguments)[:100])])


low_level = LowLevelServer("low", on_call_tool=call_tool)


class Tokens:
    async def verify_token(self, token: str) -> AccessToken | None:
        if token not in ("one", "two", "scopeless"):
            return None
        return AccessToken(token=token, client_id=token, scopes=[] if token == "scopeless" else ["use"])


options: dict[str, Any] = {"session_idle_timeout": 2}
events = InMemoryEventStore(max_events=100)
handlers = {
    "public": StreamableHTTPHandler(server, public=True, event_store=events, **options),
    "json": StreamableHTTPHandler(server, public=True, json_response=True, event_store=events, **options),
    "stateless": StreamableHTTPHandler(server, public=True, stateless_http=True),
    "token": StreamableHTTPHandler(
        server, auth=Tokens(), required_scopes=["use"], max_streams_per_session=3, **options
    ),
    "low": StreamableHTTPHandler(low_level, public=True, **options),
}

routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
as_route: Any = re_path
http = URLRouter([*routes, as_route(r"", django_asgi_app)])
application = ProtocolTypeRouter({"http": http, "lifespan": handlers["public"].lifespan})


def build_daphne() -> Any:
    from mcp_serving.daphne import Server  # no Twisted under another web server, nor in the process of the tests

    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
