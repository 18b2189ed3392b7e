"""Requests that no client should send: hypothesis strategies for them, near to valid ones of both generations.

A request is a template. ``@mine@`` in a header or body stands for the id of a session that is open, ``@mine/9@`` for
its first nine characters; see ``filled``. So a counterexample says what it is made of.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.harness import INITIALIZE, INITIALIZED, MODERN_META

Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: tuple[Header, ...]
    body: bytes
    parts: int = 1
    """In how many pieces the body comes."""
    breaks_off: bool = False
    """The client leaves before the last piece."""
    held: bool = False
    """The last piece comes only after the next request."""
    reads: int = 100
    """So many pieces of the answer, then the client leaves."""
    lingers: bool = False
    """A stream stays open until the end of the case, instead of until nothing comes for a moment."""

    @property
    def may_stand(self) -> bool:
        """Whether its answer may wait for something that does not happen: an event, an answer of the client."""
        text = self.body.replace(b"\0", b"")  # it may be UTF-16
        return self.method == "GET" or any(word in text for word in (b"listen", b"cancel_order", b"wait", b"@"))


def filled(template: bytes, known: Mapping[str, str]) -> bytes:
    def value(match: re.Match[bytes]) -> bytes:
        text = known.get(match[1].decode(), "unknown")
        return (text[: int(match[2])] if match[2] else text).encode("latin-1")

    return re.sub(rb"@([a-z]+)(?:/(-?\d+))?@", value, template)


# Messages


def older(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def modern(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    meta = {**MODERN_META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    return older(method, {**(params or {}), "_meta": meta}, request_id)


def notification(method: str, params: Any = None) -> dict[str, Any]:
    message = older(method, params)
    del message["id"]
    return message


ACCEPTED = {"action": "accept", "content": {}}
OF_BOTH: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("prompts/list", {}),
    ("tools/call", {"name": "echo", "arguments": {"value": ["text", {"a": 1}]}}),
    ("tools/call", {"name": "line", "arguments": {"line": {"number": 1, "tags": {"a": ["b"]}}, "note": "short"}}),
    ("tools/call", {"name": "region", "arguments": {"region": "eu"}}),
    ("tools/call", {"name": "reports", "arguments": {"times": 2}, "_meta": {"progressToken": "p"}}),
    ("tools/call", {"name": "cancel_order", "arguments": {"number": 7}}),
    ("tools/call", {"name": "wait", "arguments": {}}),
    ("tools/call", {"name": "hidden", "arguments": {}}),
    ("tools/call", {"name": "no such tool", "arguments": {}}),
    ("resources/read", {"uri": "item://first"}),
    ("resources/read", {"uri": "item://other"}),
    ("prompts/get", {"name": "greet", "arguments": {"name": "Ann", "times": "2"}}),
    ("prompts/get", {"name": "greet", "arguments": {}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "A"}},
    ),
    ("no/such/method", {"any": "thing"}),
]
OLDER = [
    INITIALIZE,
    INITIALIZE,
    INITIALIZED,
    *(older(*each) for each in OF_BOTH),
    older("ping"),
    older("logging/setLevel", {"level": "debug"}),
    older("resources/subscribe", {"uri": "item://first"}),
    notification("notifications/cancelled", {"requestId": 1, "reason": "enough"}),
    notification("notifications/progress", {"progressToken": 1, "progress": 1, "total": 2}),
    notification("notifications/roots/list_changed"),
    {"jsonrpc": "2.0", "id": 1, "result": ACCEPTED},
    {"jsonrpc": "2.0", "id": 2, "result": {"action": "decline"}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}},
]
MODERN = [
    *(modern(*each) for each in OF_BOTH),
    modern("server/discover"),
    modern(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["item://a"]}}
    ),
    modern(
        "tools/call",
        {
            "name": "cancel_order",
            "arguments": {"number": 7},
            "inputResponses": {"@question@": ACCEPTED},
            "requestState": "@state@",
        },
    ),
    notification("notifications/cancelled", {"requestId": 1, "_meta": MODERN_META}),
]

TEXTS = [
    "",
    "1",
    "x" * 3000,
    "\x1b[31mred\r\nforged line",
    "\u2028\u2029\u202e\x00\x7f\x85",
    "\ud800",
    "ünï",
    "../../etc/passwd",
    "item://%ff%00",
    "_GET_stream",
    "=?base64?w7w=?=",
    "2026-07-28",
    "2025-11-25",
    "1999-01-01",
    "accept",
    "cancel",
    "@state@",
    "@state/50@",
    "@state@x",
    "@mine@",
    "tools/call",
    "initialize",
    "cancel_order",
    "subscriptions/listen",
]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


OTHERS = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    float("nan"),
    float("-inf"),
    2**63,
    10**40,
    [],
    {},
    [1, "2"],
    {"a": 1},
    {"number": 0},
    lambda: nested(60),
    lambda: nested(250),
    lambda: nested(900),
]
values = st.sampled_from([*TEXTS, *OTHERS]).map(lambda value: value() if callable(value) else copy.copy(value))
KEYS = [
    "jsonrpc",
    "id",
    "method",
    "params",
    "result",
    "error",
    "name",
    "uri",
    "arguments",
    "_meta",
    "cursor",
    "__class__",
]


def places(value: Any, depth: int = 10) -> Iterator[tuple[Any, Any]]:
    """Each container in it, down to a depth, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys if depth else ():
        yield value, key
        yield from places(value[key], depth - 1)


@st.composite
def mutated(draw: st.DrawFn, message: Any) -> Any:
    message = copy.deepcopy(message)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 1, 1, 2, 3]))):
        found = list(places(message))
        if not found:
            return message
        holder, key = found[draw(st.integers(0, len(found) - 1))]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "wrap", "add"]))
        if change == "replace":
            holder[key] = draw(values)
        elif change == "wrap":
            holder[key] = [holder[key]]
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(draw(values))
        elif change == "rename":
            holder[draw(st.sampled_from(KEYS))] = holder.pop(key)
        else:
            holder[draw(st.sampled_from([*KEYS, *TEXTS[:6]]))] = draw(values)
    return message


@st.composite
def bodies(draw: st.DrawFn, message: Any) -> bytes:
    how = draw(st.sampled_from(["plain"] * 40 + ["cut", "flipped", "twice", "batch", "utf-16", "bom", "junk", "empty"]))
    text = json.dumps(message, ensure_ascii=draw(st.booleans()))
    body = text.encode("utf-8", "surrogatepass")
    if how == "cut":
        return body[: draw(st.integers(0, len(body)))]
    if how == "flipped":
        at = draw(st.integers(0, max(0, len(body) - 1)))
        return body[:at] + bytes([draw(st.integers(0, 255))]) + body[at + 1 :]
    if how == "batch":
        return b"[" + body + b"," + body + b"]"
    if how == "junk":
        return draw(st.binary(max_size=60))
    changed = {"plain": body, "twice": body * 2, "bom": b"\xef\xbb\xbf" + body, "empty": b""}
    return changed.get(how, text.encode("utf-16", "surrogatepass"))


# Headers

VALUES: list[bytes] = [
    b"",
    b"*/*",
    b"application/json",
    b"application/json; charset=utf-16",
    b"text/event-stream",
    b"text/html",
    b"\xff\xfe",
    "ü\u2028".encode(),
    b"\x1b[31mred",
    b"x" * 2000,
    b"x" * 40_000,
    b"9" * 5000,
    b"-1",
    b"12",
    b"=?base64?w7w=?=",
    b"=?base64?!?=",
    b"2024-11-05",
    b"2025-11-25",
    b"2026-07-28",
    b"2099-01-01",
    b"tools/call",
    b"subscriptions/listen",
    b"echo",
    b"evil.example",
    b"localhost:80:80",
    b"[::1",
    b"http://evil.example",
    b"http://[",
    b"null",
    b"Bearer one",
    b"Bearer two",
    b"Bearer scopeless",
    b"bearer  one",
    b"Bearer \xc3\xbc\x1b",
    b"sessionid=x",
    b'sessionid="\\000"',
    b"@mine@",
    b"@mine/40@",
    b"@mine/-1@",
    b"@mine@A",
    b"@ended@",
    b"@foreign@",
    b"@event@",
    b"@event/3@",
    b"@event@:",
    b"@other@",
    b"0",
]
NAMES = [
    b"host",
    b"origin",
    b"accept",
    b"content-type",
    b"content-length",
    b"transfer-encoding",
    b"mcp-session-id",
    b"mcp-protocol-version",
    b"mcp-method",
    b"mcp-name",
    b"mcp-param-region",
    b"mcp_session_id",
    b"last-event-id",
    b"authorization",
    b"cookie",
    b"x-forwarded-host",
    b"expect",
    b"x-\xff",
]


def headers_of(message: Any, is_modern: bool) -> list[Header]:
    """What a client sends along with a message, or with what is left of one."""
    headers = [
        (b"host", b"localhost"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
    ]
    message = message if isinstance(message, dict) else {}
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    if is_modern:
        headers.append((b"mcp-protocol-version", b"2026-07-28"))
        headers.append((b"mcp-method", as_header(message.get("method"))))
        name = params.get("uri") if message.get("method") == "resources/read" else params.get("name")
        if name is not None:
            headers.append((b"mcp-name", as_header(name)))
        if params.get("name") == "region" and isinstance(params.get("arguments"), dict):
            headers.append((b"mcp-param-region", as_header(params["arguments"].get("region"))))
    elif message.get("method") != "initialize":
        headers += [(b"mcp-protocol-version", b"2025-11-25"), (b"mcp-session-id", b"@mine@")]
    return headers


def as_header(value: Any) -> bytes:
    """What can be sent as one: HTTP servers let neither line breaks nor NUL through."""
    return re.sub(rb"[\r\n\0]", b"", str(value).encode("utf-8", "replace"))


@st.composite
def header_lists(draw: st.DrawFn, headers: list[Header]) -> tuple[Header, ...]:
    headers = list(headers)
    for _ in range(draw(st.sampled_from([0] * 8 + [1, 1, 2, 4]))):
        at = draw(st.integers(0, len(headers) - 1)) if headers else 0
        change = draw(st.sampled_from(["add", "add", "replace", "remove", "twice"]))
        if change == "add" or not headers:
            headers.append((draw(st.sampled_from(NAMES)), draw(st.sampled_from(VALUES))))
        elif change == "replace":
            headers[at] = (headers[at][0], draw(st.sampled_from(VALUES)))
        elif change == "remove":
            del headers[at]
        else:
            headers.insert(at, headers[at])
    return tuple(headers)


METHODS = ["POST"] * 40 + ["GET"] * 4 + ["DELETE", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "BREW", "p\u00f6st"]


@st.composite
def requests(draw: st.DrawFn, path: str) -> Request:
    is_modern = draw(st.booleans())
    original = draw(st.sampled_from(MODERN if is_modern else OLDER))
    message = draw(mutated(original))
    method = draw(st.sampled_from(METHODS))
    headers = headers_of(message, is_modern)
    if path == "/token":
        headers.append((b"authorization", b"Bearer one"))
    if method == "GET" and draw(st.booleans()):
        headers.append((b"last-event-id", b"@event@"))
    parts = draw(st.sampled_from([1, 1, 1, 2, 5]))
    how = draw(
        st.sampled_from(["ordinary"] * 8 + ["breaks off", "held", "impatient", "impatient", "lingers", "lingers"])
    )
    return Request(
        method,
        path,
        draw(header_lists(headers)),
        draw(bodies(message)) if method in ("POST", "PUT", "PATCH") or draw(st.integers(0, 9)) == 9 else b"",
        parts,
        breaks_off=how == "breaks off",
        held=how == "held",
        reads=draw(st.integers(0, 3)) if how == "impatient" else 100,
        lingers=how == "lingers",
    )


PATHS = ["/public", "/json", "/stateless", "/token", "/low"]


def cases(path: str) -> st.SearchStrategy[list[Request]]:
    """What one client does, one request after the other."""
    return st.lists(requests(path), min_size=1, max_size=10)
