"""The server of shop.py behind handlers of each mode; who calls is said by a header, or by a Django session."""

import json
import os
from itertools import product
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_users")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.core.asgi import get_asgi_application

get_asgi_application()  # sets Django up

from mcp_serving import StreamableHTTPHandler
from tests.project import shop
from tests.project.callers import user_from_header

MODES = {
    f"{'stateless' if stateless else 'stateful'}-{'json' if answers_json else 'sse'}": {
        "stateless_http": stateless,
        "json_response": answers_json,
    }
    for stateless, answers_json in product([False, True], repeat=2)
}
handlers = {mode: StreamableHTTPHandler(shop.server, **options) for mode, options in MODES.items()}


in_session = StreamableHTTPHandler(shop.server)
by_header = user_from_header(
    URLRouter([route for mode, handler in handlers.items() for route in handler.urlpatterns(mode)])
)
by_session = AuthMiddlewareStack(URLRouter(in_session.urlpatterns("session")))


async def http(scope: Any, receive: Any, send: Any) -> None:
    await (by_session if scope["path"] == "/session" else by_header)(scope, receive, send)


application = ProtocolTypeRouter({"http": http})


def build_daphne() -> Server:
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
