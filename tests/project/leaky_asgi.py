"""Servers of which everything fails, with a secret in what it raises: see tests/asgi/test_information.py."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_users")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app: Any = get_asgi_application()

from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.db import connection
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server as LowLevelServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resolve import Resolve
from mcp.server.streamable_http import EventStore
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParams
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from mcp_serving import MCPServer, StreamableHTTPHandler


class Model(BaseModel):
    number: int


def noted(secret: str) -> None:
    error = RuntimeError("see the note")
    error.add_note(secret)
    raise error


def caused(secret: str) -> None:
    try:
        raise LookupError(secret)
    except LookupError as error:
        raise RuntimeError("see the cause") from error


def raising(error: Callable[[str], BaseException]) -> Callable[[str], None]:
    def work(secret: str) -> None:
        raise error(secret)

    return work


FAILURES: dict[str, Callable[[str], Any]] = {
    "runtime": raising(RuntimeError),
    "value": raising(ValueError),
    "note": noted,
    "cause": caused,
    "group": raising(lambda secret: ExceptionGroup("several", [KeyError(secret)])),
    "file": lambda secret: Path(f"/srv/{secret}").read_text(),
    "sql": lambda secret: connection.cursor().execute(f'SELECT * FROM "{secret}"'),
    "setting": raising(lambda secret: ImproperlyConfigured(f"SECRET_KEY {secret}")),
    "suspicious": raising(SuspiciousOperation),
    "model": lambda secret: Model(number=secret),  # type: ignore[arg-type]
    "exit": raising(SystemExit),
}


def fail(way: str, failure: str) -> NoReturn:
    FAILURES[failure](f"secret-{way}-{failure}-")
    raise AssertionError(failure)


async def fail_async(way: str, failure: str) -> NoReturn:
    if failure == "sql":  # not from an event loop
        raise RuntimeError(f"secret-{way}-{failure}-")
    fail(way, failure)


class Bus:
    async def publish(self, event: Any) -> None: ...

    def subscribe(self, listener: Any) -> Any:
        fail("bus", "runtime")


server = MCPServer("leaky", debug=True, subscriptions=Bus())


@server.tool()
def sync_tool(failure: str) -> str:
    fail("sync_tool", failure)


@server.tool()
async def async_tool(failure: str) -> str:
    await fail_async("async_tool", failure)


@server.tool()
async def result(failure: str) -> Model:
    return {"number": f"secret-result-{failure}-"}  # type: ignore[return-value]


def resolver(failure: str) -> str:
    fail("resolver", failure)


@server.tool()
async def resolved(failure: str, value: Annotated[str, Resolve(resolver)]) -> str:
    return value


def question(failure: str) -> str:
    fail("question", failure)


@server.write_tool(confirm=question)
async def asks(failure: str) -> str:
    return failure


def permission(user: Any) -> bool:
    fail("permission", "sql")


@server.tool(permission=permission)
async def permitted(failure: str) -> str:
    return failure


@server.tool()
async def nested(failure: str, ctx: Context) -> str:
    return str(await server.call_tool("sync_tool", {"failure": failure}, ctx))


@server.resource("leak://template/{failure}")
def template(failure: str) -> str:
    fail("template", failure)


@server.resource("leak://runtime")
async def resource() -> str:
    await fail_async("resource", "runtime")


@server.prompt()
def prompt(failure: str) -> str:
    fail("prompt", failure)


@server.prompt()
async def async_prompt(failure: str) -> str:
    await fail_async("async_prompt", failure)


@server.completion()
def complete(ref: Any, argument: Any, context: Any) -> Any:
    fail("completion", argument.value)


@server.tool()
async def told(what: str) -> str:
    raise {"tool": ToolError, "resource": ResourceError}.get(what, lambda text: MCPError(-32000, text))("for everybody")


class Failing(RequestParams):
    failure: str


async def custom(ctx: Any, params: Failing) -> Any:
    await fail_async(f"custom_{ctx.lifespan_context or 'ours'}", params.failure)


async def fails_in_between(ctx: Any, call_next: Any) -> Any:
    if ctx.method == "leak/between":
        await fail_async("between", ctx.params["failure"])
    return await call_next(ctx)


server._lowlevel_server.add_request_handler("leak/custom", Failing, custom)
server._lowlevel_server.add_request_handler("leak/between", Failing, custom)
server.middleware.append(fails_in_between)


@server.custom_route("/leak/route", methods=["GET"])
async def route(request: Request) -> Response:
    await fail_async("route", "runtime")


# A server of the SDK alone


@asynccontextmanager
async def lifespan(_: Any) -> AsyncIterator[str]:
    yield "low"


async def call_tool(ctx: Any, params: Any) -> Any:
    await fail_async("low_tool", params.arguments["failure"])


async def read_resource(ctx: Any, params: Any) -> Any:
    await fail_async("low_resource", params.uri.rsplit("/", 1)[1])


async def get_prompt(ctx: Any, params: Any) -> Any:
    await fail_async("low_prompt", params.arguments["failure"])


async def list_tools(ctx: Any, params: Any) -> Any:
    return {"tools": [{"name": {"secret-low_result-": 1}}]}


low = LowLevelServer(
    "low",
    lifespan=lifespan,
    on_call_tool=call_tool,
    on_read_resource=read_resource,
    on_get_prompt=get_prompt,
    on_list_tools=list_tools,
)
low.add_request_handler("leak/custom", Failing, custom)


# Around them


class Tokens:
    async def verify_token(self, token: str) -> AccessToken | None:
        if token == "right-bearer-token":
            return AccessToken(token=token, client_id="client", scopes=[])
        if token == "wrong-bearer-token":
            return None
        return await fail_async("verifier", token)


def user_for_token(token: AccessToken) -> Any:
    fail("user_for_token", "sql")


class Store(EventStore):
    async def store_event(self, stream_id: str, message: Any) -> str:
        if message is None:  # what a stream begins with
            return "1"
        return await fail_async("store", "runtime")

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        await fail_async("replay", "runtime")


@asynccontextmanager
async def failing_lifespan(_: Any) -> AsyncIterator[None]:
    await fail_async("lifespan", "runtime")
    yield


handlers = {
    "events": StreamableHTTPHandler(server, public=True),
    "json": StreamableHTTPHandler(server, public=True, json_response=True),
    "stateless": StreamableHTTPHandler(server, public=True, stateless_http=True),
    "low": StreamableHTTPHandler(low, public=True),
    "tokens": StreamableHTTPHandler(server, auth=Tokens()),
    "users": StreamableHTTPHandler(server, auth=Tokens(), user_for_token=user_for_token),
    "store": StreamableHTTPHandler(server, public=True, event_store=Store()),
    "never": StreamableHTTPHandler(MCPServer("never", lifespan=failing_lifespan), public=True),
}
as_route: Any = re_path
routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
http = AuthMiddlewareStack(URLRouter([*routes, as_route(r"", django_asgi_app)]))
application = ProtocolTypeRouter({"http": http})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
