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
# This loads the apps, so the imports below may import models. (Any: the type stubs of re_path() accept views only.)
django_asgi_app: Any = get_asgi_application()
if settings.DEBUG:
    # Serves the admin's CSS. In a deployment, the web server in front does this.
    django_asgi_app = ASGIStaticFilesHandler(django_asgi_app)

from example_project.mcp import server  # noqa: E402
from mcp_serving import StreamableHTTPHandler  # noqa: E402
from mcp_serving.oauth import OAuth  # noqa: E402
from mcp_serving.tokens import UserTokenVerifier  # noqa: E402

# Everybody may call the tools that read. The tools that write need a permission.
mcp_handler = StreamableHTTPHandler(server, public=True)
# The same tools for users: their client signs them in at this site, or sends a personal token.
account_handler = StreamableHTTPHandler(server, auth=[OAuth(), UserTokenVerifier()], required_scopes=["shop"])
mcp_routes = [*mcp_handler.urlpatterns("mcp"), *account_handler.urlpatterns("account/mcp")]

# The middleware finds the user who has logged in at /admin/. (Django's own pages find the user themselves.)
application = ProtocolTypeRouter(
    {
        "http": AuthMiddlewareStack(URLRouter([*mcp_routes, re_path(r"", django_asgi_app)])),
        "lifespan": mcp_handler.lifespan,
    }
)
