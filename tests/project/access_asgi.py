"""One MCP server behind handlers that say in each way who may call."""

import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_users")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

import anyio
from django.contrib.auth.models import User
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from pydantic import AnyHttpUrl
from starlette.responses import PlainTextResponse

from mcp_serving import InMemoryEventStore, MCPServer, StreamableHTTPHandler, get_user
from tests.project.notes import note

server = MCPServer("site", max_threads=8)


def said() -> list[str]:
    """What the test has said: tokens that are revoked, and "go"."""
    path = Path(os.environ["TEST_NOTES"])
    return path.read_text().split() if path.exists() else []


@server.tool()
async def who(ctx: Context) -> str:
    request: Any = ctx.request_context.request
    return f"{get_user()}, in the scope {request.scope.get('user')}"


@server.tool()
async def slow(ctx: Context) -> str:
    """Reports and notes that it runs, then waits for what the test says."""
    note("slow")
    await ctx.report_progress(1, 2)
    while "go" not in said():  # noqa: ASYNC110 - the event is a file of the test
        await anyio.sleep(0.02)
    return f"for {get_user()}"


@server.tool()
async def waits(word: str) -> str:
    """Notes that it runs, then waits until the test says the word."""
    note(f"started-{word}")
    while word not in said():  # noqa: ASYNC110 - the event is a file of the test
        await anyio.sleep(0.02)
    return "done"


@server.tool()
def waits_in_a_thread(word: str) -> str:
    note(f"started-{word}")
    while word not in said():
        time.sleep(0.02)
    return "done"


@server.tool()
def quick_in_a_thread() -> str:
    return "done"


@server.tool()
async def fails() -> str:
    raise RuntimeError(f"the secret is {os.environ['TEST_SQLITE']}")


class Tokens:
    """NAME-token, or NAME-token-MORE, is a token of NAME with the scope shop; NAME-scopeless has none."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if token in said():
            return None
        name, kind, *_ = [*token.split("-"), ""]
        if name == "boom":
            raise RuntimeError(f"no such token: {token}")
        if kind not in ("token", "scopeless"):
            return None
        return AccessToken(token=token, client_id=token, scopes=["shop"] if kind == "token" else [], subject=name)


async def find_user(token: AccessToken) -> Any:
    return await User.objects.filter(username=token.subject).afirst()


def find_user_in_a_thread(token: AccessToken) -> Any:
    return User.objects.filter(username=token.subject).first()


oauth = AuthSettings(
    issuer_url=AnyHttpUrl("https://issuer.example"),
    resource_server_url=AnyHttpUrl("http://localhost/oauth"),
    required_scopes=["shop"],
    validate_token_resource=False,
)

with_a_route = MCPServer(
    "with-a-route", auth=oauth.model_copy(update={"resource_server_url": None}), token_verifier=Tokens()
)


@with_a_route.custom_route("/health", methods=["GET"])
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


handlers = {
    "routed": StreamableHTTPHandler(with_a_route, user_for_token=find_user),
    "public": StreamableHTTPHandler(server, public=True, event_store=InMemoryEventStore()),
    "login": StreamableHTTPHandler(server, login_required=True),
    "token": StreamableHTTPHandler(
        server, auth=Tokens(), required_scopes=["shop"], user_for_token=find_user_in_a_thread
    ),
    "oauth": StreamableHTTPHandler(server, auth=oauth, token_verifier=Tokens(), user_for_token=find_user),
    "userless": StreamableHTTPHandler(server, auth=Tokens()),
    "json": StreamableHTTPHandler(server, public=True, json_response=True),
    "fleeting": StreamableHTTPHandler(server, public=True, session_idle_timeout=1.5),
    "bounded": StreamableHTTPHandler(
        server,
        auth=Tokens(),
        event_store=InMemoryEventStore(),
        max_sessions_per_user=2,
        max_streams_per_session=2,
        max_header_size=4000,
        max_sessions=4,
    ),
}
without_users = StreamableHTTPHandler(server, login_required=True)

routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
wrapped = StreamableHTTPHandler(server, login_required=True)
by_session = AuthMiddlewareStack(URLRouter(routes))
plain = URLRouter(without_users.urlpatterns("without-users"))


async def http(scope: Any, receive: Any, send: Any) -> None:
    apps = {"/without-users": plain, "/wrapped": AuthMiddlewareStack(wrapped)}
    await apps.get(scope["path"], by_session)(scope, receive, send)


application = ProtocolTypeRouter({"http": http, "lifespan": handlers["public"].lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
