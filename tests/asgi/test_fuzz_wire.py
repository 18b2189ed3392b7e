"""Raw bytes at real servers: requests cut short, run together, and framed in two ways at once."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import strategies as st
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.asgi.test_fuzz import DEADLINE, fuzz
from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.daphne_limits import resident_memory
from tests.support.fuzzing import PATHS, Request, filled, requests
from tests.support.harness import Process
from tests.support.raw_http import open_session

CONNECTIONS = int(os.environ.get("FUZZ_CONNECTIONS", "700"))
"""So many to each server, of one to three requests each."""
GROWTH = 30_000
"""Kilobytes."""
QUIET = 0.01
"""Seconds to wait for an answer to an incomplete request."""

pytestmark = [pytest.mark.process, pytest.mark.fuzz, pytest.mark.timeout(900 + CONNECTIONS)]


@dataclass(frozen=True)
class Bytes:
    """What goes over one connection."""

    text: bytes
    cuts: tuple[int, ...]
    """Where it is cut into pieces that are sent one by one."""
    well_formed: bool
    """A server has to answer all of it, and to close."""


FRAMES = ["length"] * 6 + ["chunked"] * 3 + ["both", "two lengths", "too short", "too long", "bad chunk", "none"]
LINES = ["{method} {path} HTTP/1.1"] * 12 + [
    "{method} http://localhost{path} HTTP/1.1",
    "{method} {path}?token=x%00%0d%0a HTTP/1.1",
    "{method} {path}%0d%0aforged HTTP/1.1",
    "{method} //localhost{path} HTTP/1.1",
    "{method} {path}\x1b[31m HTTP/1.1",
    "{method} {path} HTTP/1.0",
    "{method} {path} HTTP/2.0",
    "{method} {path} HTTP/9",
    "{method} {path}",
    "{method}  {path}  HTTP/1.1",
    "",
]


def chunked(body: bytes, parts: int) -> bytes:
    size = max(1, -(-len(body) // parts))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def framed(request: Request, how: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    length = len(request.body)
    if how == "chunked":
        return [(b"transfer-encoding", b"chunked")], chunked(request.body, request.parts)
    if how == "bad chunk":
        return [(b"transfer-encoding", b"chunked")], chunked(request.body, request.parts).replace(b"\r\n", b"x\r\n", 1)
    if how == "both":
        headers = [(b"content-length", b"%d" % length), (b"transfer-encoding", b"chunked")]
        return headers, chunked(request.body, request.parts)
    if how == "two lengths":
        return [(b"content-length", b"%d" % length), (b"content-length", b"%d" % (length + 5))], request.body
    wrong = {"too short": max(0, length - 7), "too long": length + 7}
    return [] if how == "none" else [(b"content-length", b"%d" % wrong.get(how, length))], request.body


@st.composite
def connections(draw: st.DrawFn) -> Bytes:
    count = draw(st.sampled_from([1, 1, 2, 3]))
    text = b""
    well_formed = True
    for number in range(count):
        request = draw(requests(draw(st.sampled_from(PATHS))))
        how = draw(st.sampled_from(FRAMES))
        line = draw(st.sampled_from(LINES))
        framing, body = framed(request, how)
        if number == count - 1:
            framing.append((b"connection", b"close"))
        end = draw(st.sampled_from([b"\r\n"] * 15 + [b"\n", b"\r"]))
        colon = draw(st.sampled_from([b": "] * 15 + [b" : ", b":\x00", b":\r\n "]))
        ordinary = how in ("length", "chunked") and line == LINES[0] and end == b"\r\n" and colon == b": "
        well_formed = well_formed and ordinary and not request.may_stand and is_plain(request)
        head = [line.format(method=request.method, path=request.path).encode("latin-1")]
        head += [name + colon + value for name, value in (*request.headers, *framing)]
        text += end.join(head) + end * 2 + body
    if draw(st.integers(0, 5)) == 5:
        text, well_formed = text[: draw(st.integers(0, len(text)))], False
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=4))
    return Bytes(text, tuple(sorted(cuts)), well_formed)


def is_plain(request: Request) -> bool:
    """Whether a web server itself has nothing against it."""
    framing = {b"content-length", b"transfer-encoding", b"expect", b"host"}
    return (
        request.method in ("POST", "DELETE", "PUT")
        and [name for name, _ in request.headers if name in framing] == [b"host"]
        and all(name.isascii() and re.fullmatch(rb"[ -~]{0,3000}", value) for name, value in request.headers)
    )


class Server:
    def __init__(self, process: Process, address: str, is_uvicorn: bool) -> None:
        self.process = process
        self.is_uvicorn = is_uvicorn
        self.address = address
        self.connections = 0
        self.complete = 0
        self._known: dict[str, str] = {}

    def run(self, sent: Bytes) -> None:
        if self.connections % 20 == 0:  # it may have been ended
            self._known = {"mine": open_session(self.address, "/public"), "ended": "0" * 32, "event": "1"}
        self.connections += 1
        parts = urlsplit(self.address)
        with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(ConnectionError):  # the server has had enough
                for start, end in zip((0, *sent.cuts), (*sent.cuts, len(sent.text)), strict=True):
                    connection.sendall(filled(sent.text[start:end], self._known))
            received = self._received(connection, sent.well_formed)
        statuses = [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", received, re.MULTILINE)]
        assert all(status < 500 or status in (501, 503, 505) for status in statuses), received
        if sent.well_formed:
            self.complete += 1
            assert statuses, "closed without an answer"

    def _received(self, connection: socket.socket, to_the_end: bool) -> bytes:
        received = b""
        if not to_the_end:
            connection.settimeout(QUIET)
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionError):
            assert not to_the_end, f"no end after: {received!r}"
        return received

    @property
    def memory(self) -> int:
        """Kilobytes."""
        return resident_memory(self.process) // 2**10

    def serves(self, mode: str) -> bool:
        async def work() -> Any:
            async with Client(streamable_http_client(f"{self.address}/public"), mode=mode) as client:
                return await client.call_tool("line", {"line": {"number": 42}})

        return anyio.run(work).structured_content["number"] == 42


@pytest.fixture(params=["runmcp", "daphne", "uvicorn"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    module = "tests.project.fuzzed_asgi"
    options = ["--server", f"{module}.server"] if request.param == "runmcp" else []
    env = {**in_django.ENVIRONMENT, "TEST_DEBUG": "0"}
    with serving(request.param, module, *options, env=env) as (process, address):
        yield Server(process, address, is_uvicorn=request.param == "uvicorn")


def test_bytes_of_any_kind_are_answered_or_refused_and_leave_nothing_behind(server: Server) -> None:
    fuzz(connections(), server.run, lambda: server.connections >= CONNECTIONS / 2)
    before = server.memory
    fuzz(connections(), server.run, lambda: server.connections >= CONNECTIONS, series=1)
    assert server.memory - before < GROWTH
    assert server.complete > CONNECTIONS / 20
    assert server.serves("auto")
    assert server.serves("legacy")
    raised = re.findall(r"^(?:.*Traceback.*|[\w.]+(?:Error|Exception|Group)\b.*)$", server.process.errors, re.MULTILINE)
    if server.is_uvicorn:
        # Without httptools, uvicorn answers a chunk that is none, and then cannot send what it has begun to send.
        raised = [line for line in raised if not line.startswith(("h11._util.", "Traceback"))]
    assert not raised, server.process.errors
