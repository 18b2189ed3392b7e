"""Handlers of doors_asgi.py beside Django, for pages of other origins: as docs/cors.md has it."""

import json
import os
from functools import partial
from typing import Annotated, Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import re_path
from pydantic import Field
from starlette.middleware.cors import CORSMiddleware

from tests.project.access_asgi import handlers, server  # sets Django up
from tests.project.notes import note


@server.tool()
async def delete(what: str) -> None:
    note(f"deleted {what}")


@server.tool()
async def find_region(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return region


with_cors: Any = partial(
    CORSMiddleware,
    allow_origins=settings.CSRF_TRUSTED_ORIGINS,
    allow_methods=["GET", "POST", "DELETE"],
    allow_headers=["*"],
    expose_headers=["Mcp-Session-Id", "MCP-Protocol-Version", "WWW-Authenticate", "Retry-After"],
)


def with_cors_and_login(app: Any) -> Any:
    return with_cors(AuthMiddlewareStack(app), allow_credentials=True)


routes = [
    *handlers["public"].urlpatterns("public", with_cors),
    *handlers["token"].urlpatterns("token", with_cors),
    *handlers["oauth"].urlpatterns("oauth", with_cors),
    *handlers["login"].urlpatterns("login", with_cors_and_login),
    re_path(r"", get_asgi_application()),
]
application = ProtocolTypeRouter({"http": URLRouter(routes), "lifespan": handlers["public"].lifespan})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
