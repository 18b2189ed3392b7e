"""A middleware that cancels the handler, as a timeout does, is not mistaken for a handler that cancels itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.shutdown.in_flight import InFlightRequests
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware
from tests.asgi.test_mount import in_process
from tests.support.harness import call
from tests.support.raw_http import headers_of


def slow_server(noted: list[str]) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("slow-server")

    @server.tool()
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            noted.append("cancelled")
            raise
        return "never"

    @server.tool()
    async def awaits_a_cancelled_task() -> str:
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
        await task
        return "never"

    @server.tool()
    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    return server


class Timeout:
    """A timeout around the mount, as a project writes it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(0.3):
                await self.app(scope, receive, send)
        except TimeoutError:
            await PlainTextResponse("too slow", 504)(scope, receive, send)


@pytest.mark.parametrize(("modern", "json_response"), [(True, True), (True, False), (False, True)])
def test_a_timeout_of_a_middleware_reaches_the_middleware(
    modern: bool, json_response: bool, caplog: pytest.LogCaptureFixture
) -> None:
    noted: list[str] = []

    async def talk() -> tuple[int, str]:
        handler = StreamableHTTPHandler(slow_server(noted), json_response=json_response, stateless_http=True)
        message = call(1, "slow", modern=modern)
        async with in_process(Timeout(handler)) as client:
            response = await client.post("/", json=message, headers=headers_of(message))
        await lifecycle.close()
        return response.status_code, response.text

    assert asyncio.run(talk()) == (504, "too slow")
    assert noted == ["cancelled"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("json_response", [True, False])
@pytest.mark.parametrize("modern", [True, False])
def test_a_handler_that_awaits_a_cancelled_task_fails_with_its_own_error(modern: bool, json_response: bool) -> None:
    async def talk() -> str:
        handler = StreamableHTTPHandler(slow_server([]), json_response=json_response, stateless_http=True)
        message = call(7, "awaits_a_cancelled_task", modern=modern)
        async with in_process(handler) as client:
            response = await client.post("/", json=message, headers=headers_of(message))
        await lifecycle.close()
        return response.text

    assert '"id":7' in asyncio.run(talk())


def test_a_handler_that_cancels_the_task_of_its_request_is_answered_by_the_outermost_middleware() -> None:
    sent: list[Any] = []
    message = call(1, "cancels_itself", modern=True)
    bodies = [{"type": "http.request", "body": json.dumps(message).encode()}]

    async def receive() -> Any:
        return bodies.pop() if bodies else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def talk() -> None:
        handler = StreamableHTTPHandler(slow_server([]), json_response=True)
        app = RequestTrackingMiddleware(handler, InFlightRequests(), is_outermost=True)
        headers = {**headers_of(message), "host": "testserver"}
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        [outcome] = await asyncio.gather(asyncio.create_task(app(scope, receive, send)), return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        await lifecycle.close()

    asyncio.run(talk())
    assert sent[0]["status"] == 500
