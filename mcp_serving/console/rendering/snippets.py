"""A call as other programs make it: its JSON, the same in curl and in Python."""

from __future__ import annotations

import json
import pprint
import shlex
from importlib.metadata import version
from typing import Any

from mcp_types import CallToolRequest, CallToolRequestParams, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from mcp_serving.inspection.description import indented

PROTOCOL = "2026-07-28"


def request_json(name: str, arguments: dict[str, Any]) -> str:
    """The JSON-RPC request of a call."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL,
        "io.modelcontextprotocol/clientInfo": {"name": "mcp-serving-console", "version": version("mcp-serving")},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    call = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    params = call.model_dump(mode="json", by_alias=True, exclude_none=True)["params"]
    return indented(JSONRPCRequest(jsonrpc="2.0", id=1, method=call.method, params={**params, "_meta": meta}))


def response_json(result: Any) -> str:
    """The JSON-RPC response with a result."""
    plain = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return indented(JSONRPCResponse(jsonrpc="2.0", id=1, result=plain))


def error_json(error: ErrorData) -> str:
    """The JSON-RPC response with an error."""
    return indented(JSONRPCError(jsonrpc="2.0", id=1, error=error))


def curl(url: str, name: str, arguments: dict[str, Any], *, token: bool) -> str:
    """The call in curl. A token is taken from the environment, so that it stays out of the shell's history."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL,
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }
    lines = [f"curl {shlex.quote(url)}"]
    lines += [f"--header {shlex.quote(f'{key}: {value}')}" for key, value in headers.items()]
    if token:
        lines.append('--header "Authorization: Bearer $MCP_TOKEN"')
    body = json.dumps(json.loads(request_json(name, arguments)), ensure_ascii=False)
    return " \\\n  ".join([*lines, f"--data {shlex.quote(body)}"])


def python(url: str, name: str, arguments: dict[str, Any], *, token: bool) -> str:
    """The call in Python, with the SDK."""
    arguments_text = pprint.pformat(arguments, sort_dicts=False, width=88)
    call = f"await client.call_tool({name!r}, {arguments_text})"
    if not token:
        return (
            "import asyncio\n\nfrom mcp import Client\n\n\nasync def main():\n"
            f"    async with Client({url!r}) as client:\n        print({call})\n\n\nasyncio.run(main())\n"
        )
    return (
        "import asyncio\nimport os\n\nimport httpx2\nfrom mcp import Client\n"
        "from mcp.client.streamable_http import streamable_http_client\n\n\nasync def main():\n"
        '    headers = {"Authorization": f"Bearer {os.environ[\'MCP_TOKEN\']}"}\n'
        "    async with httpx2.AsyncClient(headers=headers) as http:\n"
        f"        async with Client(streamable_http_client({url!r}, http_client=http)) as client:\n"
        f"            print({call})\n\n\nasyncio.run(main())\n"
    )
