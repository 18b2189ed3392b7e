"""The console beside the server that it shows."""

import json
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_console")

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app: Any = ASGIStaticFilesHandler(get_asgi_application())

from mcp_serving import StreamableHTTPHandler
from mcp_serving.tokens import UserTokenVerifier
from tests.project.console import server

handler = StreamableHTTPHandler(server, auth=UserTokenVerifier())

application = ProtocolTypeRouter(
    {
        "http": URLRouter([*handler.urlpatterns("mcp"), re_path(r"", django_asgi_app)]),
        "lifespan": handler.lifespan,
    }
)


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
