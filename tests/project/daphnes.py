"""Daphne servers with every option in use, and callables that build none."""

import json
import os
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from daphne.server import Server
from django.urls import path, re_path

from mcp_serving import StreamableHTTPHandler
from tests.project import asgi, mcp
from tests.project.notes import note

handler = StreamableHTTPHandler(mcp.server)


async def show_scope(scope: Any, receive: Any, send: Any) -> None:
    shown = {key: scope.get(key) for key in ("client", "scheme", "root_path", "added")}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(shown).encode()})


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *handler.urlpatterns("mcp"),
                path("scope/", show_scope),  # type: ignore[arg-type]
                re_path(r"", asgi.django_asgi_app),
            ]
        )
    }
)


def endpoints() -> list[str]:
    found: list[str] = json.loads(os.environ["TEST_ENDPOINTS"])
    return found


class OwnServer(Server):
    def run(self) -> None:
        note("own run")
        super().run()
        note("own run returned")

    def create_application(self, protocol: Any, scope: Any) -> Any:
        return super().create_application(protocol, {**scope, "added": "by create_application"})

    def listen_success(self, port: Any) -> None:
        note("own listen_success")
        super().listen_success(port)

    def listen_error(self, failure: Any) -> None:
        note("own listen_error")
        super().listen_error(failure)


def build() -> Server:
    note("built")
    return OwnServer(
        application,
        endpoints(),
        action_logger=lambda protocol, action, details: note(f"{protocol} {action} {details['path']}"),
        http_timeout=1,
        root_path="/prefix",
        proxy_forwarded_address_header="X-Forwarded-For",
        proxy_forwarded_port_header="X-Forwarded-Port",
        proxy_forwarded_proto_header="X-Forwarded-Proto",
        ready_callable=lambda: note("ready"),
        server_name="own-name",
        verbosity=int(os.environ.get("TEST_VERBOSITY", "1")),
    )


def without_application() -> Server:
    return Server(None, endpoints())


def without_endpoints() -> Server:
    return Server(application)


def nothing() -> None:
    """Forgets its return statement."""


def raises() -> Server:
    raise KeyError("DAPHNE_PORT")


not_callable = "tcp:8000"
