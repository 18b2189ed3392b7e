"""A mount that no client reaches: Django's route stands before it."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_asgi_app = get_asgi_application()

from mcp_serving import StreamableHTTPHandler
from tests.project.mcp import server

handler = StreamableHTTPHandler(server, public=True)
catch_all = re_path(r"", django_asgi_app)  # type: ignore[arg-type]
application = ProtocolTypeRouter({"http": URLRouter([catch_all, *handler.urlpatterns("mcp")])})
