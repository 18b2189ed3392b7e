"""One router for both: MCP at /mcp and /account/mcp, Django everywhere else."""

import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
# Loads the apps: what follows may import models. (Any: to the type stubs, re_path() takes views only.)
django_asgi_app: Any = get_asgi_application()
if settings.DEBUG:
    # The admin's CSS without a web server in front; in deployment, static files are its job.
    django_asgi_app = ASGIStaticFilesHandler(django_asgi_app)

from example_project.mcp import server  # noqa: E402
from mcp_serving import StreamableHTTPHandler  # noqa: E402
from mcp_serving.oauth import OAuth  # noqa: E402
from mcp_serving.tokens import UserTokenVerifier  # noqa: E402

# Everybody may look at the shop's tools that read; those that write ask for permissions.
mcp_handler = StreamableHTTPHandler(server, public=True)
# The same tools for users: their client signs them in at this site, or sends a personal token.
account_handler = StreamableHTTPHandler(server, auth=[OAuth(), UserTokenVerifier()], required_scopes=["shop"])
mcp_routes = [*mcp_handler.urlpatterns("mcp"), *account_handler.urlpatterns("account/mcp")]

# Around all of it: who is logged in at /admin/ is who calls the tools. (Django's own pages look for themselves.)
application = ProtocolTypeRouter(
    {
        "http": AuthMiddlewareStack(URLRouter([*mcp_routes, re_path(r"", django_asgi_app)])),
        "lifespan": mcp_handler.lifespan,
    }
)
