"""Text that cannot be written as JSON costs no answer: a response becomes an error, other messages get a ``?``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from tests.asgi.test_mount import in_process
from tests.support.harness import INITIALIZE, INITIALIZED, call
from tests.support.raw_http import headers_of

pytestmark = pytest.mark.filterwarnings("ignore:The logging capability is deprecated")

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


@server.tool()
async def progress(ctx: Context[Any, Any]) -> str:
    await ctx.report_progress(1, message="half \ud800 a character")
    return "done"


@server.tool()
async def log(ctx: Context[Any, Any]) -> str:
    await ctx.info({"a list": ["half \ud800 a character"]})
    return "done"


@server.tool()
async def question(ctx: Context[Any, Any]) -> str:
    params = ElicitRequestFormParams(
        message="half \ud800 a character", requested_schema={"type": "object", "properties": {}}
    )
    on_the_stream_of_the_call = ServerMessageMetadata(related_request_id=ctx.request_id)
    with pytest.raises(MCPError):
        await ctx.session.send_request(
            ElicitRequest(params=params), ElicitResult, 0.01, metadata=on_the_stream_of_the_call
        )
    return "done"


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
            headers = headers_of(message, session)
            message["params"].setdefault("_meta", {"progressToken": 1})
            response = await client.post("/", json=message, headers=headers)
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


@pytest.mark.parametrize("tool", ["progress", "log", "question"])
def test_an_older_client_gets_the_other_messages_of_a_call_with_a_question_mark_and_then_its_answer(tool: str) -> None:
    text = answer(tool, modern=False)
    assert text.count("half ? a character") == 1
    assert '"id":7,"result"' in text.splitlines()[-2]
    assert '"done"' in text


@pytest.mark.parametrize("options", [{"json_response": True}, {"stateless_http": True}])
@pytest.mark.parametrize("tool", ["progress", "log"])
def test_such_a_message_costs_no_answer_in_the_other_modes(tool: str, options: dict[str, bool]) -> None:
    text = answer(tool, modern=False, **options)
    assert '"id":7,"result"' in text
    assert '"done"' in text


@pytest.mark.parametrize("json_response", [True, False])
def test_a_client_of_2026_07_28_gets_the_text_as_it_is(json_response: bool) -> None:
    text = answer("result", modern=True, json_response=json_response)
    assert '"id":7' in text
    assert r"half \ud800 a character" in text
