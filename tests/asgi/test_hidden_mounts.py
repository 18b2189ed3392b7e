"""An endpoint that no client can reach, because another route of its router comes first."""

from __future__ import annotations

from typing import Any

import pytest
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path, re_path
from starlette.middleware.cors import CORSMiddleware

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi.hidden_mounts import warn_of_hidden_mounts
from tests.support.harness import runmcp


async def django_app(scope: Any, receive: Any, send: Any) -> None: ...


as_route: Any = re_path
as_path: Any = path


def handler() -> StreamableHTTPHandler:
    return StreamableHTTPHandler(MCPServer("a server"), public=True)


@pytest.mark.parametrize("pattern", ["", "^.*$", "^mcp"])
@pytest.mark.parametrize(
    "around",
    [
        lambda router: router,
        AuthMiddlewareStack,
        lambda router: ProtocolTypeRouter({"http": AuthMiddlewareStack(router)}),
        lambda router: CORSMiddleware(ProtocolTypeRouter({"http": AllowedHostsOriginValidator(router)})),
    ],
)
def test_a_route_before_the_endpoint_that_matches_its_path_is_a_warning(
    around: Any, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = handler()
    router = URLRouter([as_route(pattern, django_app), *mounted.urlpatterns("mcp")])
    warn_of_hidden_mounts(around(router), [mounted])
    [message] = caplog.messages
    assert message.startswith(f"The route {pattern!r} comes before the MCP endpoint /mcp")


def test_an_endpoint_that_can_be_reached_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    first, second, nested, by_hand = handler(), handler(), handler(), handler()
    inner = URLRouter(nested.urlpatterns("mcp"))
    router = URLRouter(
        [
            as_route("^other", django_app),
            *first.urlpatterns("mcp"),
            *second.urlpatterns("second/mcp"),
            as_path("inner/", inner),
            as_route("^by-hand", by_hand),
            as_route("", django_app),
        ]
    )
    warn_of_hidden_mounts(ProtocolTypeRouter({"http": router}), [first, second, nested, by_hand])
    assert caplog.messages == []


@pytest.mark.parametrize("application", [None, django_app, ProtocolTypeRouter({}), object()])
def test_an_application_without_a_router_is_no_warning(application: Any, caplog: pytest.LogCaptureFixture) -> None:
    mounted = handler()
    mounted.urlpatterns("mcp")
    warn_of_hidden_mounts(application, [mounted])
    assert caplog.messages == []


@pytest.mark.process
def test_runmcp_warns_of_a_catch_all_route_before_the_endpoint() -> None:
    env = {
        "TEST_ASGI_APPLICATION": "tests.project.hidden_asgi.application",
        "TEST_MCP_SERVING": '{"SERVER": "tests.project.mcp.server"}',
    }
    with runmcp("--transport", "http", "0", env=env) as process:
        process.wait_for(r"The route '' comes before the MCP endpoint /mcp and matches its path, so that no client")
