"""One query in a sync tool, and the same in a sync view, on one Daphne server."""

import json
import os
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path

from mcp_serving.tools.server import MCPServer
from tests.project.things.models import Thing

server = MCPServer("bench")


def query() -> str:
    return Thing.objects.get(name="the one").name


@server.tool()
def tool() -> str:
    return query()


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(query())


urlpatterns = [path("view/", view)]


def build_daphne() -> Any:
    from channels.routing import ProtocolTypeRouter, URLRouter
    from daphne.server import Server
    from django.core.asgi import get_asgi_application

    from mcp_serving import StreamableHTTPHandler

    handler = StreamableHTTPHandler(server, public=True)
    django: Any = re_path(r"", get_asgi_application())  # type: ignore[arg-type]
    application = ProtocolTypeRouter({"http": URLRouter([*handler.urlpatterns("mcp"), django])})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
