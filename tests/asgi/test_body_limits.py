"""A body of any content delays other callers little, costs little memory, and gets a short answer."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from typing import Any

import pytest

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.web_servers.request_body import MAX_VALUES, has_more_values
from tests.support import in_django  # sets Django up
from tests.support.harness import INITIALIZE, call
from tests.support.raw_http import headers_of

assert in_django

SIZE = 4 * 2**20 - 2000
HALF_A_SECOND = 0.5
MEGABYTES = 100 * 10**6

server: MCPServer[Any] = MCPServer("limits")


@server.tool()
async def numbers(values: list[int]) -> str:
    return str(len(values))


@server.tool()
async def anything(values: Any) -> str:
    return "some values"


@server.tool()
async def text(values: str) -> str:
    return str(len(values))


def many(unit: bytes, size: int = SIZE) -> bytes:
    return b"[" + unit * (size // len(unit) - 1) + unit.rstrip(b",") + b"]"


VALUES = {
    "numbers": ("numbers", many(b"1,")),
    "strings for numbers": ("numbers", many(b'"",')),
    "lists": ("anything", many(b"[],")),
    "dicts": ("anything", many(b"{},")),
    "nested dicts": ("anything", many(b'{"a":{}},')),
    "deep lists": ("anything", b"[" * (SIZE // 2) + b"]" * (SIZE // 2)),
    "keys": ("anything", b"{" + b",".join(b'"%x":1' % number for number in range(SIZE // 12)) + b"}"),
    "one key": ("anything", b"{" + b'"a":1,' * (SIZE // 6) + b'"a":1}'),
    "UTF-16": ("anything", many(b"1,", SIZE // 2)),
}
"""The arguments of bodies that are refused."""

TEXTS = {
    "commas": b'"' + b"," * SIZE + b'"',
    "base64": b'"' + b"QUJD" * (SIZE // 4) + b'"',
    "escapes": b'"' + b"\\u0041" * (SIZE // 6) + b'"',
    "quotation marks": b'"' + b'\\",' * (SIZE // 3) + b'"',
    "backslashes": b'"' + b"\\\\[" * (SIZE // 3) + b'"',
}
"""The arguments of bodies that are served: one long string."""


def body_of(tool: str, values: bytes, *, modern: bool) -> bytes:
    return json.dumps(call(1, tool, modern=modern, values="@")).encode().replace(b'"@"', values)


class Answer:
    """What one request got, and what it cost the process."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.seconds = 0.0
        """The longest time of CPU in which nobody else had a turn."""
        self.memory = 0


async def post(handler: StreamableHTTPHandler, message: dict[str, Any], body: bytes, **changed: str | None) -> Answer:
    """Send a body in pieces, next to a task that wants a turn all the time."""
    headers = {**headers_of(message), "host": "testserver", "content-length": str(len(body)), **changed}
    answer = Answer()
    pieces = [body[start : start + 2**16] for start in range(0, len(body), 2**16)]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False
    messages.reverse()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        answer.status = message.get("status", answer.status)
        answer.body += message.get("body", b"")

    async def take_turns() -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0)
            answer.seconds = max(answer.seconds, time.process_time() - before)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None],
    }
    others = asyncio.ensure_future(take_turns())
    await asyncio.sleep(0)
    tracemalloc.start()
    try:
        await handler(scope, receive, send)
    finally:
        answer.memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        others.cancel()
    return answer


def served(
    message: dict[str, Any], body: bytes, options: dict[str, Any] | None = None, **headers: str | None
) -> Answer:
    async def talk() -> Answer:
        handler = StreamableHTTPHandler(server, json_response=True, stateless_http=True, **(options or {}))
        try:
            return await post(handler, message, body, **headers)
        finally:
            await lifecycle.close()

    return asyncio.run(talk())


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("content", VALUES)
def test_a_body_with_millions_of_values_is_refused_and_delays_nobody(
    content: str, modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tool, values = VALUES[content]
    body = body_of(tool, values, modern=modern)
    if content == "UTF-16":
        body = body.decode().encode("utf-16")
    answer = served(call(1, tool, modern=modern), body)
    assert (answer.status, answer.body) == (413, b"The body has more than 104857 JSON values.\n")
    assert answer.seconds < HALF_A_SECOND
    assert answer.memory < MEGABYTES
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "max_request_body_size" in message


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("content", TEXTS)
def test_a_body_with_one_long_string_is_served_whatever_is_in_it(content: str, modern: bool) -> None:
    body = body_of("text", TEXTS[content], modern=modern)
    answer = served(call(1, "text", modern=modern), body)
    assert answer.status == 200
    assert json.loads(answer.body)["result"]["content"][0]["text"] == str(len(json.loads(TEXTS[content])))
    assert answer.seconds < HALF_A_SECOND
    assert answer.memory < MEGABYTES


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("unit", [b"1,", b"[],", b"{},", b'{"":1},'])
def test_a_body_with_as_many_values_as_allowed_is_served_and_delays_nobody(unit: bytes, modern: bool) -> None:
    separators = sum(unit.count(each) for each in (b",", b":", b"[", b"{"))
    values = many(unit, MAX_VALUES // separators * len(unit))
    answer = served(call(1, "anything", modern=modern), body_of("anything", values, modern=modern))
    assert (answer.status, b"some values" in answer.body) == (200, True)
    assert answer.seconds < HALF_A_SECOND
    assert answer.memory < MEGABYTES


def test_a_body_without_a_length_is_counted_too() -> None:
    tool, values = VALUES["numbers"]
    message = call(1, tool, modern=True)
    body = body_of(tool, values, modern=True)
    assert served(message, body, **{"content-length": None}).status == 413
    assert served(message, body, **{"content-length": "10x"}).status == 413


def test_other_messages_are_counted_too() -> None:
    body = json.dumps(INITIALIZE).encode().replace(b'"name"', b'"icons": %s, "name"' % many(b"1,"))
    answer = served(INITIALIZE, body)
    assert answer.status == 413
    assert answer.seconds < HALF_A_SECOND


def test_with_a_larger_body_size_more_values_are_allowed() -> None:
    body = body_of("numbers", many(b"1,", 300_000), modern=True)
    message = call(1, "numbers", modern=True)
    assert served(message, body).status == 413
    answer = served(message, body, {"max_request_body_size": 8 * 2**20})
    assert json.loads(answer.body)["result"]["content"][0]["text"] == "150000"


def test_a_small_body_size_does_not_lower_the_number_of_values() -> None:
    body = body_of("numbers", many(b"1,", 50_000), modern=True)
    answer = served(call(1, "numbers", modern=True), body, {"max_request_body_size": 60_000})
    assert json.loads(answer.body)["result"]["content"][0]["text"] == "25000"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"1", 1),
        (b"[]", 2),  # an empty list counts twice
        (b"[1]", 2),
        (b'[1, 2, "3"]', 4),
        (b'{"a": 1}', 3),
        (b'{"a,b": "[{,:"}', 3),
        (rb'["\"," , "\\", "\\\",", 4]', 5),
        (b'["unterminated, ,,,', 2),
        ('["é,ü", "😀,"]'.encode(), 3),
    ],
)
def test_values_and_keys_are_counted_outside_of_strings(text: bytes, values: int) -> None:
    assert has_more_values(text, values - 1)
    assert not has_more_values(text, values)
