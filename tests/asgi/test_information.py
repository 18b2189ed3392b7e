"""What a client is told of a failure, and what a client can do to the log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from mcp.shared.inbound import encode_header_value

from tests.support import in_django
from tests.support.access_servers import bearer, logged_in
from tests.support.harness import INITIALIZE, INITIALIZED, MODERN_META, Process, runmcp, serving_http
from tests.support.http_client import listen
from tests.support.raw_http import exchange, headers_of, open_session

pytestmark = pytest.mark.process

# Failures

Way = Callable[[str], tuple[str, dict[str, Any]]]


def tool(name: str) -> Way:
    return lambda failure: ("tools/call", {"name": name, "arguments": {"failure": failure}})


def read(uri: str) -> Way:
    return lambda failure: ("resources/read", {"uri": uri + failure})


def prompt(name: str) -> Way:
    return lambda failure: ("prompts/get", {"name": name, "arguments": {"failure": failure}})


def complete(failure: str) -> tuple[str, dict[str, Any]]:
    argument = {"name": "failure", "value": failure}
    return "completion/complete", {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": argument}


WAYS: dict[str, Way] = {
    "sync_tool": tool("sync_tool"),
    "async_tool": tool("async_tool"),
    "result": tool("result"),
    "resolver": tool("resolved"),
    "question": tool("asks"),
    "nested": tool("nested"),
    "template": read("leak://template/"),
    "prompt": prompt("prompt"),
    "async_prompt": prompt("async_prompt"),
    "completion": complete,
    "custom_ours": lambda failure: ("leak/custom", {"failure": failure}),
    "between": lambda failure: ("leak/between", {"failure": failure}),
}
OF_THE_SDK: dict[str, Way] = {
    "low_tool": tool("any"),
    "low_resource": read("leak://low/"),
    "low_prompt": prompt("any"),
    "custom_low": lambda failure: ("leak/custom", {"failure": failure}),
}
FAILURES = ["runtime", "value", "note", "cause", "group", "file", "sql", "setting", "suspicious", "model", "exit"]
ONCE: dict[str, tuple[str, dict[str, Any]]] = {
    "permission-sql": ("tools/call", {"name": "permitted", "arguments": {"failure": ""}}),
    "resource-runtime": ("resources/read", {"uri": "leak://runtime"}),
}
ALL = {
    **{f"{way}-{failure}": make(failure) for way, make in WAYS.items() for failure in FAILURES},
    **ONCE,
}
ALL_OF_THE_SDK = {
    **{f"{way}-{failure}": make(failure) for way, make in OF_THE_SDK.items() for failure in FAILURES},
    "low_result": ("tools/list", {}),
}


def expected(name: str) -> str:
    """What the log says of it."""
    return f"secret-{name}-".replace("nested", "sync_tool")


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


def posted(address: str, path: str, content: dict[str, Any], session: str | None = None, **headers: str) -> bytes:
    named = {"Mcp-Name": content["params"]["uri"]} if content["method"] == "resources/read" else {}
    return raw(address, path, content, **{**headers_of(content, session), **named, **headers})


LEAKY = {
    **in_django.ENVIRONMENT,
    "TEST_DEBUG": "0",
    "TEST_MCP_SERVING": json.dumps({"HTTP_SERVER": "tests.project.leaky_asgi.build_daphne"}),
}


@pytest.fixture(scope="module")
def leaky(users: None) -> Iterator[tuple[Process, str]]:
    module = "tests.project.leaky_asgi"
    with serving_http("--http-server", f"{module}.build_daphne", "--server", f"{module}.server", env=LEAKY) as served:
        yield served


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize(("path", "calls"), [("/events", ALL), ("/json", ALL), ("/low", ALL_OF_THE_SDK)])
def test_over_http_an_exceptions_text_is_in_the_log_and_in_no_answer(
    path: str, calls: dict[str, tuple[str, dict[str, Any]]], modern: bool, leaky: tuple[Process, str]
) -> None:
    process, address = leaky
    session = None if modern else open_session(address, path)
    before = len(process.errors)
    names = [name for name in calls if modern or path != "/json" or not name.startswith("question")]
    for name in names:
        answer = posted(address, path, message(name, *calls[name], modern=modern), session)
        assert re.match(rb"HTTP/1.1 (200|500) ", answer), (name, answer)
        assert b"secret-" not in answer, (name, answer)
        assert b"rror" in answer, (name, answer)
    for name in names:
        process.wait_for(re.escape(expected(name)))
        assert expected(name) in process.errors[before:], name


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize(("server", "calls"), [("server", ALL), ("low", ALL_OF_THE_SDK)])
def test_over_stdio_an_exceptions_text_is_in_the_log_and_in_no_answer(
    server: str, calls: dict[str, tuple[str, dict[str, Any]]], modern: bool, users: None
) -> None:
    with runmcp("--server", f"tests.project.leaky_asgi.{server}", env=LEAKY) as process:
        if not modern:
            process.send(INITIALIZE, INITIALIZED)
            process.receive()
        for name in calls:
            process.send(message(name, *calls[name], modern=modern))
            answer = process.receive()
            assert answer["id"] == name
            assert "secret-" not in json.dumps(answer), (name, answer)
            assert "error" in answer or answer["result"]["isError"], (name, answer)
        for name in calls:
            process.wait_for(re.escape(expected(name)))


def test_what_fails_outside_of_a_call_tells_no_client_why(leaky: tuple[Process, str]) -> None:
    process, address = leaky
    ping = message("1", "tools/list", {}, modern=True)
    answers = {
        "verifier-runtime": posted(address, "/tokens", ping, **bearer("runtime")),
        "user_for_token-sql": posted(address, "/users", ping, **bearer("right-bearer-token")),
        "route-runtime": raw(address, "/leak/route", method="GET"),
        "lifespan-runtime": posted(address, "/never", ping),
    }
    for name, answer in answers.items():
        assert re.match(rb"HTTP/1.1 50[03] ", answer), (name, answer)
        assert b"secret-" not in answer, (name, answer)
        process.wait_for(expected(name).replace("verifier-runtime", r"verifier-\[the token\]"))


def test_a_bus_that_fails_tells_no_subscriber_why(leaky: tuple[Process, str]) -> None:
    process, address = leaky
    answer = posted(address, "/events", listen())
    assert b"Internal server error" in answer
    assert b"secret-" not in answer
    process.wait_for("secret-bus-")


def test_an_event_store_that_fails_costs_the_resuming_and_no_answer(leaky: tuple[Process, str]) -> None:
    process, address = leaky
    opening = posted(address, "/store", INITIALIZE)
    session = re.search(rb"(?i)mcp-session-id: (\S+)", opening)[1].decode()  # type: ignore[index]
    for number in range(3):
        answer = posted(address, "/store", message(str(number), "tools/list", {}, modern=False), session)
        assert b'"sync_tool"' in answer
        assert b"secret-" not in answer
    process.wait_for("secret-store-runtime-")
    resumed = {"Accept": "text/event-stream", "Mcp-Session-Id": session}
    first = re.search(rb"id: (\S+)", opening)[1].decode()  # type: ignore[index]
    assert b"secret-" not in raw(address, "/store", method="GET", Last_Event_ID=first, **resumed)
    process.wait_for("secret-replay-runtime-")


def test_a_deliberate_text_reaches_the_client(leaky: tuple[Process, str]) -> None:
    _, address = leaky
    for what in ("tool", "resource", "protocol"):
        call = message("1", "tools/call", {"name": "told", "arguments": {"what": what}}, modern=True)
        assert b"for everybody" in posted(address, "/events", call)


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


def test_neither_a_bearer_token_nor_a_session_cookie_is_in_the_log(users: None) -> None:
    module = "tests.project.leaky_asgi"
    options = ["--http-server", f"{module}.build_daphne", "--server", f"{module}.server"]
    cookie = logged_in("ann")["Cookie"]
    secrets = ["right-bearer-token", "wrong-bearer-token", "broken-bearer-token", cookie.partition("=")[2]]
    with serving_http(*options, env=LOGGED) as (process, address):
        for path in ("/events", "/json", "/tokens", "/users", "/leak/route"):
            for modern in (True, False):
                for token in secrets[:3]:
                    sent = message("1", *prompt("prompt")("runtime"), modern=True) if modern else INITIALIZE
                    posted(address, path, sent, **bearer(token), Cookie=cookie)
        process.wait_for("secret-prompt-runtime-")
        process.wait_for("could not be verified")
        for secret in secrets:
            assert secret not in process.errors
