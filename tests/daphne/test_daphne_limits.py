"""``mcp_serving.daphne.Server``: what is too large or too slow is refused at once, and others do not notice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect as websocket

from mcp_serving.daphne import Server
from tests.support.daphne_limits import COMMAND, LITTLE, bounded, bounded_over_tls, peak_memory
from tests.support.harness import DEADLINE, Process, call, runmcp, text_of, wait_until
from tests.support.http_client import Clients
from tests.support.raw_http import Request, exchange, post

AT_ONCE = 6.0
"""Seconds on a busy machine. Otherwise the answer comes after the read timeout of a minute, or never."""

LIMIT = 1_000_000


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the server closes, in good order."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


def assert_refused(answer: bytes, status: int) -> None:
    """It is one whole answer, and says that the connection is closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert lines[0].startswith(f"HTTP/1.1 {status} "), answer
    assert headers["connection"] == "close"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert int(headers["content-length"]) == len(body) > 10


def assert_others_are_served(address: str, times: int) -> None:
    for _ in range(times):
        answer = post(address, "/mcp", call(1, "echo", modern=True, text="x"))
        assert text_of(json.loads(answer.read())) == "x"
        assert answer.seconds < AT_ONCE


def post_head(*headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("POST /digest/ HTTP/1.1", "Host: localhost", *headers, "")).encode()


def chunks_of(body: bytes, size: int = 60_000) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Process, str]]:
    with bounded(max_request_body_size=LIMIT, max_headers=50, max_header_size=8000) as served:
        yield served


@pytest.mark.process
def test_a_root_path_of_a_clients_own_counts_for_nothing(served: tuple[Process, str]) -> None:
    for root_path in (b"/elsewhere", b"/\xff"):
        head = b"GET /quick/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nDaphne-Root-Path: " + root_path
        assert exchange(served[1], head + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


# Bodies


@pytest.mark.process
@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(post_head(f"Content-Length: {LIMIT + 1}"), id="announced"),
        pytest.param(post_head(f"Content-Length: {10**30}"), id="announced as absurdly large"),
        pytest.param(post_head(f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"), id="asking before it sends"),
        pytest.param(
            post_head("Transfer-Encoding: chunked") + chunks_of(bytes(LIMIT + 1)) + b"0\r\n\r\n", id="in chunks"
        ),
        pytest.param(post_head("Transfer-Encoding: chunked") + chunks_of(bytes(LIMIT + 1)), id="in chunks without end"),
        pytest.param(post_head("Transfer-Encoding: chunked") + b"%x\r\n" % 10**9 + bytes(LIMIT + 1), id="in one chunk"),
    ],
)
def test_a_body_over_the_limit_is_refused_at_once(served: tuple[Process, str], request_bytes: bytes) -> None:
    before = time.monotonic()
    answer = exchange(served[1], request_bytes)
    assert time.monotonic() - before < AT_ONCE
    assert_refused(answer, 413)


@pytest.mark.process
@pytest.mark.parametrize("how", ["announced", "in chunks"])
def test_a_client_that_sends_100_mb_without_looking_reads_why_it_was_refused(
    served: tuple[Process, str], how: str
) -> None:
    process, address = served
    body = bytes(100_000_000)
    Request(address, "/quick/").read()
    before = peak_memory(process)
    with connected(address) as connection:
        if how == "announced":
            connection.sendall(post_head(f"Content-Length: {len(body)}"))
            connection.sendall(body)
        else:
            connection.sendall(post_head("Transfer-Encoding: chunked") + chunks_of(body) + b"0\r\n\r\n")
        assert_refused(everything(connection), 413)
    assert peak_memory(process) - before < LITTLE / 4


@pytest.mark.process
@pytest.mark.parametrize("how", ["announced", "in chunks", "in tiny chunks"])
def test_a_body_up_to_the_limit_arrives_byte_for_byte(served: tuple[Process, str], how: str) -> None:
    body = random.Random(1).randbytes(LIMIT)
    if how == "announced":
        head, sent = post_head(f"Content-Length: {len(body)}", "Connection: close"), body
    else:
        head = post_head("Transfer-Encoding: chunked", "Connection: close")
        sent = chunks_of(body, 7 if how == "in tiny chunks" else 60_000) + b"0\r\n\r\n"
    answer = exchange(served[1], head + sent)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(f"{LIMIT} {hashlib.sha256(body).hexdigest()}".encode())


@pytest.mark.process
def test_a_form_is_left_to_django(served: tuple[Process, str]) -> None:
    body = b"a=%s" % (b"x" * 1000)
    form = "Content-Type: multipart/form-data; boundary=it-is-none"
    answer = exchange(served[1], post_head(f"Content-Length: {len(body)}", form, "Connection: close") + body)
    assert answer.endswith(f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode())


@pytest.mark.process
def test_a_client_that_waits_for_a_word_before_its_body_gets_it(served: tuple[Process, str]) -> None:
    with connected(served[1]) as connection:
        connection.sendall(post_head("Content-Length: 4", "Expect: 100-continue", "Connection: close"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"body")
        assert everything(connection).endswith(f"4 {hashlib.sha256(b'body').hexdigest()}".encode())


# Headers


@pytest.mark.process
@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(post_head(*(f"X-{number}: {'x' * 500}" for number in range(20))), id="together too large"),
        pytest.param(post_head(*(f"X-{number}: x" for number in range(60))), id="too many"),
        pytest.param(post_head(f"Cookie: {'x' * 9000}"), id="one too large"),
        pytest.param(b"GET /" + b"x" * 9000, id="no end of the request line"),
        pytest.param(b"GET /" + b"x" * 500_000, id="far from the end of the request line"),
    ],
)
def test_headers_over_the_limits_are_refused_at_once(served: tuple[Process, str], request_bytes: bytes) -> None:
    before = time.monotonic()
    answer = exchange(served[1], request_bytes)
    assert time.monotonic() - before < AT_ONCE
    assert_refused(answer, 431)


@pytest.mark.process
def test_headers_up_to_the_limits_are_served(served: tuple[Process, str]) -> None:
    many = {f"X-{number}": "x" for number in range(45)}
    assert Request(served[1], "/quick/", headers=many).read() == b"quick"
    assert Request(served[1], "/quick/", headers={"Cookie": "x" * 7800}).read() == b"quick"


@pytest.mark.process
@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"this is no request\r\n\r\n", id="request line"),
        pytest.param(b"GET / HTTP/3.0\r\n\r\n", id="version"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\r\n", id="TLS"),
        pytest.param(post_head("no colon"), id="header"),
        pytest.param(post_head("no colon", "X-Next: x"), id="header before another"),
        pytest.param(post_head("Content-Length: ten"), id="length"),
        pytest.param(post_head(f"Content-Length: {'9' * 5000}"), id="length of 5,000 digits"),
        pytest.param(post_head("Content-Length: 1", "Content-Length: 2"), id="two lengths"),
        pytest.param(post_head("Content-Length: 1", "Transfer-Encoding: chunked"), id="length and chunks"),
        pytest.param(post_head("Transfer-Encoding: chunked") + b"zz\r\n", id="chunk"),
    ],
)
def test_what_is_no_request_is_answered_with_400(served: tuple[Process, str], request_bytes: bytes) -> None:
    assert_refused(exchange(served[1], request_bytes + b"and more of it" * 10_000), 400)


# Time


@pytest.fixture(scope="module")
def impatient() -> Iterator[tuple[Process, str]]:
    with bounded(read_timeout=2, keep_alive_timeout=1) as served:
        yield served


@pytest.mark.process
@pytest.mark.parametrize(
    ("at_once", "dribbled"),
    [
        pytest.param(b"", post_head(*(f"X-{number}: x" for number in range(100))), id="headers"),
        pytest.param(post_head("Content-Length: 1000"), bytes(1000), id="body"),
        pytest.param(post_head("Transfer-Encoding: chunked"), chunks_of(bytes(1000), 1), id="chunks"),
        pytest.param(b"GET /quick/ HTTP/1.1\r\nHost: localhost\r\n\r\nGET /qui", bytes(1000), id="after another"),
    ],
)
def test_a_request_that_comes_byte_by_byte_is_refused_while_others_are_served(
    impatient: tuple[Process, str], at_once: bytes, dribbled: bytes
) -> None:
    _, address = impatient
    with connected(address) as connection:
        before = time.monotonic()
        connection.sendall(at_once)
        for number in range(len(dribbled)):
            connection.sendall(dribbled[number : number + 1])
            assert_others_are_served(address, 1)
            connection.settimeout(0.05)
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
            if b" 408 " in answer:
                break
        assert 1.9 < time.monotonic() - before < 1.9 + AT_ONCE
        connection.settimeout(DEADLINE)
        assert_refused(answer + everything(connection), 408)


@pytest.mark.process
def test_a_request_that_stops_coming_is_refused_at_the_same_time(impatient: tuple[Process, str]) -> None:
    before = time.monotonic()
    assert_refused(exchange(impatient[1], post_head("Content-Length: 10") + b"half"), 408)
    assert 1.9 < time.monotonic() - before < 1.9 + AT_ONCE


@pytest.mark.process
def test_an_idle_connection_is_closed_after_its_time_and_one_that_is_answered_is_not(
    impatient: tuple[Process, str],
) -> None:
    _, address = impatient
    with connected(address) as never_used, connected(address) as used:
        used.sendall(b"GET /slow-async/?seconds=3 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = time.monotonic()
        assert everything(never_used) == b""
        assert 0.9 < time.monotonic() - before < 0.9 + AT_ONCE
        assert b"slow async view finished" in everything(used)
        assert 3.9 < time.monotonic() - before < 3.9 + AT_ONCE


@pytest.mark.process
def test_an_upload_that_is_slow_but_in_time_arrives(impatient: tuple[Process, str]) -> None:
    with connected(impatient[1]) as connection:
        connection.sendall(post_head("Content-Length: 2", "Connection: close"))
        for byte in (b"a", b"b"):
            time.sleep(0.4)
            connection.sendall(byte)
        assert everything(connection).endswith(hashlib.sha256(b"ab").hexdigest().encode())


@pytest.mark.process
def test_a_websocket_outlives_every_timeout_of_http(impatient: tuple[Process, str]) -> None:
    async def talk() -> None:
        async with websocket(impatient[1].replace("http", "ws") + "/echo/") as echo:
            for pause in (0, 3.5):
                await asyncio.sleep(pause)
                await echo.send("x" * 500_000)
                assert await echo.recv() == "x" * 500_000

    asyncio.run(talk())


# HTTP/1.1


@pytest.mark.process
def test_requests_on_one_connection_are_answered_in_turn(served: tuple[Process, str]) -> None:
    _, address = served
    bodies = [random.Random(number).randbytes(number) for number in (0, 1, 70_000, 10, 200_000, 1)]
    requests = [post_head(f"Content-Length: {len(body)}") + body for body in bodies]
    requests[3] = post_head("Transfer-Encoding: chunked") + chunks_of(bodies[3], 3) + b"0\r\n\r\n"
    expected = [f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode() for body in bodies]

    async def talk() -> None:
        async with Clients(address) as clients:
            for pipelined in (True, False):
                connection = await clients.connect()
                if pipelined:
                    connection.writer.write(b"".join(requests))
                for request, digest in zip(requests, expected, strict=True):
                    if not pipelined:
                        connection.writer.write(request)
                    assert (await connection.answer()).body == digest
                # What is refused on a connection that has served others ends it like a first one.
                connection.writer.write(post_head(f"Content-Length: {LIMIT + 1}") + bytes(200_000))
                assert (await connection.answer()).status == 413
                assert await connection.ended() == b""

    asyncio.run(talk())


@pytest.mark.process
def test_over_tls_a_client_reads_why_it_was_refused(tmp_path: Path) -> None:
    with bounded_over_tls(tmp_path, max_request_body_size=LIMIT) as (_, connect):
        for body, status in ((bytes(LIMIT), 200), (bytes(20_000_000), 413)):
            with connect() as connection:
                assert connection.selected_alpn_protocol() == "http/1.1"
                connection.sendall(post_head(f"Content-Length: {len(body)}", "Connection: close"))
                connection.sendall(body)
                answer = everything(connection)
                assert answer.startswith(f"HTTP/1.1 {status} ".encode())
                if status == 413:
                    assert_refused(answer, 413)


@pytest.mark.process
def test_clients_that_are_being_refused_do_not_delay_the_exit() -> None:
    with bounded() as (process, address), ExitStack() as connections:
        for request in (post_head("Content-Length: 999999999"), post_head("Content-Length: 999999999"), b"GET /"):
            connection = connections.enter_context(connected(address))
            connection.sendall(request)
            if request != b"GET /":
                assert connection.recv(20).startswith(b"HTTP/1.1 413 ")
        process.signal(signal.SIGTERM)
        assert process.wait(AT_ONCE) == 0
        assert "Traceback" not in process.errors


# Many


@pytest.mark.process
def test_5000_open_connections_cost_little_memory_and_others_are_served() -> None:
    many = 5_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = many + 500
    if soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        many = wanted - 500
        if many < 500:
            pytest.skip(f"the system lets a process open {hard} files only")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))  # the server inherits it
    try:
        with bounded(backlog=4096) as (process, address), ExitStack() as connections:
            assert_others_are_served(address, 1)
            before = peak_memory(process)
            descriptors = f"/proc/{process.pid}/fd"
            halves = [
                b"",
                b"GET /qui",
                post_head("Content-Length: 1000") + b"half a body",
                post_head("X: " + "x" * 4000),
            ]
            for number in range(many):
                connection = connections.enter_context(connected(address))
                connection.sendall(halves[number % 3])
            wait_until(lambda: len(os.listdir(descriptors)) > many, f"{many} connections")
            assert_others_are_served(address, 20)
            grown = peak_memory(process) - before
            print(f"{many} connections: grown by {grown / 1e6:.1f} MB")
            assert grown / many < 20_000
            connections.close()
            wait_until(lambda: len(os.listdir(descriptors)) < 100, "the connections are forgotten")
            assert "Traceback" not in process.errors
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Options


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"max_request_body_size": "10MB"},
            TypeError,
            "max_request_body_size must be a whole number or None",
        ),
        ({"max_request_body_size": -1}, ValueError, "max_request_body_size must be at least 0, not -1"),
        (
            {"max_request_body_size": 1e6},
            TypeError,
            "max_request_body_size must be a whole number or None",
        ),
        ({"max_header_size": None}, TypeError, "max_header_size must be a whole number, not None"),
        ({"max_header_size": 0}, ValueError, "max_header_size must be at least 1, not 0"),
        ({"max_headers": True}, TypeError, "max_headers must be a whole number, not True"),
        ({"read_timeout": 0}, ValueError, "read_timeout must be a finite number of seconds above 0, or None, not 0"),
        ({"read_timeout": float("nan")}, ValueError, "read_timeout must be a finite number"),
        ({"write_timeout": float("inf")}, ValueError, "write_timeout must be a finite number"),
        ({"keep_alive_timeout": "60"}, TypeError, "keep_alive_timeout must be a number of seconds or None, not '60'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as raised:
        Server(None, ["tcp:port=0"], **options)
    assert says in str(raised.value)


def test_an_option_that_only_daphne_knows_is_passed_on() -> None:
    server = Server(None, ["tcp:port=0"], server_name="own", max_request_body_size=None)
    assert (server.server_name, server.max_request_body_size) == ("own", None)
    with pytest.raises(TypeError, match="max_body"):
        Server(None, ["tcp:port=0"], max_body=1)


@pytest.mark.process
def test_runmcp_says_in_one_line_what_is_wrong_with_an_option() -> None:
    env = {"TEST_ENDPOINTS": '["tcp:port=0"]', "TEST_DAPHNE": '{"read_timeout": -1}'}
    with runmcp(*COMMAND, env=env) as process:
        assert process.wait() == 1
        last = [line for line in process.errors.splitlines() if line][-1]
        assert last.startswith("CommandError: ")
        assert "read_timeout must be a finite number of seconds above 0, or None, not -1" in last
        assert "Traceback" not in process.errors
