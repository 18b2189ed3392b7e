"""What a client can do to the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from mcp.shared.inbound import encode_header_value

from tests import in_django
from tests.harness import INITIALIZE, INITIALIZED, MODERN_META, Process, runmcp, serving_http
from tests.raw_http import exchange, headers_of, open_session


def message(request_id: str, method: str, params: dict[str, Any], *, modern: bool) -> dict[str, Any]:
    if modern:
        params = {**params, "_meta": {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}}
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def raw(address: str, path: str, content: Any = None, *, method: str = "POST", **headers: str) -> bytes:
    """Every byte of the answer."""
    body = b"" if content is None else json.dumps(content).encode()
    lines = {"Host": urlsplit(address).netloc, "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return exchange(address, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)


# The log

NASTY = [
    "\x1b[31mred",
    "a\r\nLINE| INFO mcp forged",
    "\u2028\u2029",
    "nul\x00",
    "\u202eredro",
    "nel\x85csi\x9b31m",
    "x\n" * 50_000,
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "LINE| %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "DEBUG"},
    "loggers": {"django": {"handlers": []}},
}
LOGGED = {**in_django.ENVIRONMENT, "TEST_LOGGING": json.dumps(LOGGING)}


def messages(nasty: str) -> Iterator[dict[str, Any]]:
    """With the text wherever it may come to be logged."""
    for modern in (False, True):
        for method, params in (
            (nasty, {}),
            ("tools/call", {"name": nasty, "arguments": {"failure": nasty}}),
            ("tools/call", {"name": "told", "arguments": {"what": nasty}}),
            ("tools/call", {"name": "region", "arguments": {nasty: nasty}}),
            ("tools/call", {"name": "cancel", "arguments": {"number": nasty}, "requestState": nasty}),
            ("resources/read", {"uri": nasty}),
            ("resources/read", {"uri": f"item://{nasty}"}),
            ("resources/subscribe", {"uri": nasty}),
            ("prompts/get", {"name": nasty, "arguments": {nasty: nasty}}),
            ("prompts/get", {"name": "greet", "arguments": {"name": nasty, "times": nasty}}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": nasty}, "argument": {"name": nasty, "value": nasty}},
            ),
            ("tools/list", {"cursor": nasty}),
            ("logging/setLevel", {"level": nasty}),
        ):
            yield message("1", method, params, modern=modern)
            yield message(nasty, method, params, modern=modern)
    about = {"protocolVersion": nasty, "capabilities": {}, "clientInfo": {"name": nasty, "version": nasty}}
    yield message("1", "initialize", about, modern=False)
    yield {"jsonrpc": "2.0", "id": nasty, "result": {nasty: nasty}}
    yield {"jsonrpc": "2.0", "id": nasty, "error": {"code": 1, "message": nasty}}
    for method, params in (
        (nasty, {}),
        ("notifications/cancelled", {"requestId": nasty, "reason": nasty}),
        ("notifications/progress", {"progressToken": nasty, "progress": nasty}),
        ("notifications/roots/list_changed", {"_meta": nasty}),
    ):
        yield {"jsonrpc": "2.0", "method": method, "params": params}


def must_be_whole(process: Process) -> None:
    lines = [line for line in process.errors.split("\n") if line]
    assert len(lines) > 100
    for line in lines:
        assert line.isprintable(), line[:300]
        # The command itself says when it starts and when it stops.
        assert line.startswith(("LINE| ", "MCP server ", "Shutting down: ")), line[:300]
        assert not line.startswith("LINE| INFO mcp forged")
        assert len(line) < 9000


def test_over_stdio_no_text_of_a_client_breaks_or_colours_a_line_of_the_log() -> None:
    with runmcp("--server", "tests.project.fuzzed_asgi.server", env=LOGGED) as process:
        process.send(INITIALIZE, INITIALIZED)
        for nasty in NASTY:
            for each in messages(nasty):
                process.send(each)
                if "id" in each and "method" in each:
                    process.receive()
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        process.wait()
        must_be_whole(process)


HEADERS = [
    "Mcp_Session_Id",
    "MCP_Protocol_Version",
    "Mcp_Method",
    "Mcp_Name",
    "Mcp_Param_Region",
    "Last_Event_ID",
    "Origin",
    "Host",
    "Accept",
    "Content_Type",
    "Authorization",
    "Cookie",
    "User_Agent",
    "X_Forwarded_For",
]


def test_over_http_no_header_path_or_body_breaks_or_colours_a_line_of_the_log(users: None) -> None:
    module = "tests.project.fuzzed_asgi"
    options = ["--http-server", f"{module}.build_daphne", "--server", f"{module}.server"]
    with serving_http(*options, env=LOGGED) as (process, address):
        session = open_session(address, "/public")
        for nasty in NASTY:
            in_header = re.sub(r"[\r\n\0]|[^\0-\xff]", " ", nasty)[:20_000]
            for name in HEADERS:
                for method in ("POST", "GET"):
                    # Of another value of Accept than these, a stream would not come, which would stay open.
                    sent = {"Accept": "application/json", **headers_of(INITIALIZE), name: in_header}
                    raw(address, "/public", INITIALIZE, method=method, **sent)
            quoted = quote(nasty[:5000], encoding="utf-8")
            for path in (f"/public{quoted}", f"/{quoted}", f"/public?{quoted}"):
                raw(address, path, INITIALIZE, **headers_of(INITIALIZE))
            for each in messages(nasty):
                raw(address, "/public", each, **headers_for(each, session))
        must_be_whole(process)


def headers_for(content: dict[str, Any], session: str) -> dict[str, str]:
    """What clients send along, encoded as they do where it is no header."""
    params = content.get("params", {})
    if not isinstance(params.get("_meta"), dict):
        return headers_of({"method": "", **content}, session if content.get("method") != "initialize" else None)
    about = params.get("uri") or params.get("name") or ""
    names = {"Mcp-Method": content["method"], "Mcp-Name": about}
    encoded = {name: encode_header_value(text[:5000]) for name, text in names.items()}
    return {**headers_of(INITIALIZE), "MCP-Protocol-Version": "2026-07-28", **encoded}
