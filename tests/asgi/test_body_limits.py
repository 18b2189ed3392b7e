"""A body of any content delays other callers little, costs little memory, and gets a short answer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mcp_serving import MCPServer, StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.garbage import imports_frozen
from mcp_serving.web_servers.request_body import MAX_OTHER_VALUES, MAX_VALUES, has_more_values
from tests.support import in_django  # sets Django up
from tests.support.harness import INITIALIZE, MODERN_META, call
from tests.support.raw_http import headers_of

assert in_django

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

SIZE = 4 * 2**20 - 2000
HALF_A_SECOND = 0.5
MEGABYTES = 100 * 10**6
A_FEW_KILOBYTES = 5000

server: MCPServer[Any] = MCPServer("limits")


@server.tool()
async def numbers(values: list[int]) -> str:
    return str(len(values))


@server.tool()
async def anything(values: Any) -> str:
    return "some values"


class Book(BaseModel):
    title: str
    author: str
    year: int


class Film(BaseModel):
    name: str
    director: str
    minutes: int


class Shelf(BaseModel):
    media: list[Book | Film]
    prices: dict[str, int] = {}


@server.tool()
async def shelve(values: Shelf) -> str:
    return "shelved"


@server.prompt()
def greet(name: str) -> str:
    return name


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
    memory_before = reset_peak_memory()
    try:
        await handler(scope, receive, send)
        await asyncio.sleep(0)  # to the end of the last turn
    finally:
        answer.memory = memory("VmHWM") - memory_before
        others.cancel()
    return answer


def reset_peak_memory() -> int:
    """Let the peak of the process start again; it includes what pydantic has outside of Python's objects."""
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")
    return memory("VmRSS")


def memory(kind: str) -> int:
    found = re.search(rf"{kind}:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return int(found[1]) * 1000 if found is not None else 0


def served(
    message: dict[str, Any], body: bytes, options: dict[str, Any] | None = None, **headers: str | None
) -> Answer:
    async def talk() -> Answer:
        handler = StreamableHTTPHandler(server, json_response=True, stateless_http=True, **(options or {}))
        try:
            return await post(handler, message, body, **headers)
        finally:
            await lifecycle.close()

    with imports_frozen():  # as in every server that supports the lifespan
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


def members(value: bytes, count: int) -> bytes:
    return b"{" + b",".join(b'"%x":%s' % (number, value) for number in range(count)) + b"}"


ARGUMENTS = {
    "empty strings": ("numbers", many(b'"",', 3 * 99_000)),
    "empty lists": ("numbers", many(b"[],", 3 * 49_000)),
    "empty objects for a union of models": ("shelve", b'{"media":%s}' % many(b"{},", 3 * 33_000)),
    "strings in an object": ("shelve", b'{"media":[],"prices":%s}' % members(b'"x"', 49_000)),
    "JSON in a string": ("numbers", b'"%s"' % many(b"[],")),
}
"""Invalid arguments of tools with almost as many values as allowed."""


@pytest.mark.parametrize("modern", [True, False])
@pytest.mark.parametrize("content", ARGUMENTS)
def test_many_invalid_arguments_have_few_errors_and_delay_nobody(content: str, modern: bool) -> None:
    tool, values = ARGUMENTS[content]
    answer = served(call(1, tool, modern=modern), body_of(tool, values, modern=modern))
    result = json.loads(answer.body)["result"]
    assert result["isError"]
    assert 1 <= int(re.search(r"(\d+) validation errors? for", result["content"][0]["text"])[1]) <= 6  # type: ignore[index]
    assert len(answer.body) < A_FEW_KILOBYTES
    assert answer.seconds < HALF_A_SECOND
    assert answer.memory < MEGABYTES


def test_prompts_and_requests_with_many_invalid_parameters_have_a_short_answer_and_delay_nobody() -> None:
    for value in (b"1", b'"x"'):
        message = method("prompts/get", name="greet", arguments="@")
        answer = served(message, json.dumps(message).encode().replace(b'"@"', members(value, 49_000)))
        assert (answer.status, len(answer.body) < A_FEW_KILOBYTES) == (400, True)
        assert answer.seconds < HALF_A_SECOND
        assert answer.memory < MEGABYTES


def method(name: str, /, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": name, "params": {**params, "_meta": MODERN_META}}


CONTENT = b'{"a":{"role":"assistant","model":"m","content":%s}}'
PARAMETERS = {
    "initialize": (INITIALIZE, b'"test"', b'"test","icons":%s', b"1,"),
    "subscriptions/listen": (
        method("subscriptions/listen", notifications={"resourceSubscriptions": "@"}),
        b'"@"',
        b"%s",
        b"1,",
    ),
    "an answer to a question": (method("tools/call", name="text", inputResponses="@"), b'"@"', CONTENT, b"{},"),
}
"""A message, a part of it, what replaces the part, and the values in that."""


@pytest.mark.parametrize("case", PARAMETERS)
def test_other_invalid_parameters_have_a_short_answer_and_delay_nobody(case: str) -> None:
    message, part, replacement, unit = PARAMETERS[case]

    def answered(count: int) -> Answer:
        values = many(unit, count * len(unit))
        answer = served(message, json.dumps(message).encode().replace(part, replacement % values))
        assert len(answer.body) < A_FEW_KILOBYTES
        assert answer.seconds < HALF_A_SECOND
        assert answer.memory < MEGABYTES
        return answer

    for count in (MAX_OTHER_VALUES + 1, MAX_VALUES // 3, MAX_VALUES):
        assert answered(count).status == 413
    allowed = answered(MAX_OTHER_VALUES // 2 - 100)
    assert json.loads(allowed.body)["error"]["code"] == -32602


def test_a_body_that_is_not_json_has_at_most_as_many_values() -> None:
    body = body_of("numbers", many(b"1,", 2 * MAX_VALUES // 2), modern=True)
    assert served(call(1, "numbers", modern=True), body).status == 200
    assert served(call(1, "numbers", modern=True), body[:-1]).status == 413
    assert served(call(1, "numbers", modern=True), body.replace(b"1", b"1" * 5000, 1)).status == 413


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
