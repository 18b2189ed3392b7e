"""A response that cannot be written as JSON is an error with the id of its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.mcpserver.exceptions import ToolError

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from tests.asgi.test_mount import in_process
from tests.support.harness import INITIALIZE, INITIALIZED, call
from tests.support.raw_http import headers_of

server: MCPServer[Any] = MCPServer("surrogates")


@server.tool()
async def result() -> str:
    return "half \ud800 a character"


@server.tool()
async def tool_error() -> str:
    raise ToolError("half \ud800 a character")


@server.tool()
async def protocol_error() -> str:
    raise MCPError(-32000, "half \ud800 a character")


def answer(tool: str, *, modern: bool, **options: bool) -> str:
    async def ask() -> str:
        handler = StreamableHTTPHandler(server, **options)
        session = None
        async with in_process(handler) as client:
            if not (modern or options.get("stateless_http")):
                opened = await client.post("/", json=INITIALIZE, headers=headers_of(INITIALIZE))
                session = opened.headers["mcp-session-id"]
                await client.post("/", json=INITIALIZED, headers=headers_of(INITIALIZED, session))
            message = call(7, tool, modern=modern)
            response = await client.post("/", json=message, headers=headers_of(message, session))
        await lifecycle.close()
        assert response.status_code == 200
        return response.text

    return asyncio.run(ask())


@pytest.mark.parametrize("stateless_http", [True, False])
@pytest.mark.parametrize("json_response", [True, False])
@pytest.mark.parametrize("tool", ["result", "tool_error", "protocol_error"])
def test_an_older_client_gets_an_error_with_the_id_of_its_call(
    tool: str, json_response: bool, stateless_http: bool, caplog: pytest.LogCaptureFixture
) -> None:
    text = answer(tool, modern=False, json_response=json_response, stateless_http=stateless_http)
    assert '"id":7' in text
    assert "The response cannot be written as JSON." in text
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith(f"The response to tools/call {tool!r} cannot be written as JSON")
    assert record.exc_info is None


@pytest.mark.parametrize("json_response", [True, False])
def test_a_client_of_2026_07_28_gets_the_text_as_it_is(json_response: bool) -> None:
    text = answer("result", modern=True, json_response=json_response)
    assert '"id":7' in text
    assert r"half \ud800 a character" in text
