"""The stdio wire itself: lines no client should send, messages of any size, clients that do not read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, UNSUPPORTED_PROTOCOL_VERSION

from tests.support.daphne_limits import resident_memory
from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    MODERN_META,
    Notes,
    Process,
    call,
    runmcp,
    text_of,
    wait_until,
)

pytestmark = pytest.mark.process

MEGABYTES_16 = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    """One process for the whole module: each test leaves a connection behind that the next one uses."""
    with runmcp() as process:
        process.send(INITIALIZE, INITIALIZED)
        assert process.receive()["result"]["serverInfo"]["name"] == "test-server"
        yield process


def is_served(process: Process) -> bool:
    process.send(call("next", "immediate", text="served"))
    answer = process.receive()
    return bool(answer["id"] == "next" and text_of(answer) == "served")


def ends_at_eof(process: Process, timeout: float = 5) -> bool:
    assert process.popen.stdin is not None
    process.popen.stdin.close()
    return process.wait(timeout) == 0


DEEP = 10_000
REQUEST = '{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"it": %s}}'


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        pytest.param(b"no JSON at all", PARSE_ERROR, None, id="no JSON"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 7, "meth', PARSE_ERROR, None, id="cut off"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 7, "method": "\xff\xfe"}', PARSE_ERROR, None, id="invalid UTF-8"),
        pytest.param((REQUEST % r'"\ud800"').encode(), PARSE_ERROR, None, id="lone surrogate"),
        pytest.param((REQUEST % ("7" * 5000)).encode(), PARSE_ERROR, None, id="integer of 5,000 digits"),
        pytest.param((REQUEST % ("[" * DEEP + "]" * DEEP)).encode(), PARSE_ERROR, None, id="nested 10,000 deep"),
        pytest.param(b"\x00" * 1000, PARSE_ERROR, None, id="zeros"),
        pytest.param(b'{"hello": "world"}', INVALID_REQUEST, None, id="no JSON-RPC"),
        pytest.param(b"null", INVALID_REQUEST, None, id="null"),
        pytest.param(f"[{REQUEST % 1}]".encode(), INVALID_REQUEST, None, id="batch"),
        pytest.param(b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', INVALID_REQUEST, 7, id="JSON-RPC 1.0"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 7, "method": 5}', INVALID_REQUEST, 7, id="method of a wrong type"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST, None, id="fractional id"),
        pytest.param(b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID_REQUEST, None, id="null id"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 7, "result": 5}', INVALID_REQUEST, None, id="answer of a wrong type"),
    ],
)
def test_an_invalid_line_gets_an_error_and_the_next_line_is_served(
    server: Process, line: bytes, code: int, request_id: int | None
) -> None:
    server.send(line + b"\n")
    answer = server.receive()
    assert (answer["error"]["code"], answer["id"]) == (code, request_id)
    assert is_served(server)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" \t",
        b"\r",
        b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "what?"}}',
        b'{"jsonrpc": "2.0", "method": "notifications/unheard-of"}',
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "unknown"}}',
    ],
)
def test_an_empty_line_or_a_notification_gets_no_response_and_the_next_line_is_served(
    server: Process, line: bytes
) -> None:
    server.send(line + b"\n")
    assert is_served(server)


def test_lines_may_end_in_crlf(server: Process) -> None:
    server.send(json.dumps(call(1, "immediate", text="CRLF")).encode() + b"\r\n")
    assert text_of(server.receive()) == "CRLF"


@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
def test_every_unicode_character_arrives_unchanged(server: Process, escaped: bool) -> None:
    text = "".join(map(chr, [*range(0x800), 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF])) + "\u0041\u030a"
    server.send(json.dumps(call(1, "immediate", text=text), ensure_ascii=escaped).encode() + b"\n")
    assert text_of(server.receive()) == text


@pytest.mark.parametrize("tool", ["surrogate", "surrogate_error"])
def test_a_response_that_cannot_be_json_becomes_an_error(server: Process, tool: str) -> None:
    server.send(call(1, tool))
    answer = server.receive()
    assert (answer["id"], answer["error"]["code"]) == (1, INTERNAL_ERROR)
    assert is_served(server)


def test_messages_of_16_megabytes_arrive_in_both_directions(server: Process) -> None:
    server.send(call(1, "size", text="x" * MEGABYTES_16), call(2, "big", length=MEGABYTES_16))
    answers = {answer["id"]: answer for answer in (server.receive(), server.receive())}
    assert text_of(answers[1]) == str(MEGABYTES_16)
    assert len(text_of(answers[2])) == MEGABYTES_16
    assert is_served(server)


def test_64_calls_run_in_parallel(server: Process) -> None:
    server.send(*(call(number, "slow", seconds=1, name=str(number)) for number in range(64)))
    answers = [server.receive() for _ in range(64)]
    assert {answer["id"]: text_of(answer) for answer in answers} == {n: f"{n} finished" for n in range(64)}


@pytest.mark.serial
def test_an_idle_server_uses_no_cpu(server: Process) -> None:
    def ticks() -> int:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def is_idle() -> bool:
        before = ticks()
        threading.Event().wait(1.5)
        return ticks() - before <= 2

    assert is_served(server)
    # The last work for the request above may fall into the first of these times.
    assert any(is_idle() for _ in range(3))


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
def test_the_first_request_decides_the_protocol_whatever_comes_before_it(modern: bool) -> None:
    requests = [INITIALIZE, call(1, "immediate", modern=True, text="x")]
    first, second = reversed(requests) if modern else requests
    with runmcp() as process:
        process.send(*[INITIALIZED] * 20, first)
        assert "result" in process.receive()
        process.send(second)
        refusal = UNSUPPORTED_PROTOCOL_VERSION if modern else INVALID_REQUEST
        assert process.receive()["error"]["code"] == refusal
        assert ends_at_eof(process)


# What is counted as unanswered


def test_a_request_with_an_id_that_is_in_flight_is_refused_and_the_id_can_be_used_again() -> None:
    with runmcp("--shutdown-timeout", "60") as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=0.5))
        assert process.receive()["id"] == "initialize"
        process.send(call(1, "echo", text="second"), call("1", "echo", text="third"))
        for request_id in (1, "1"):
            refused = process.receive()
            assert (refused["id"], refused["error"]["code"]) == (request_id, INVALID_REQUEST)
            assert refused["error"]["message"] == "A request with this id is in flight."
        assert text_of(process.receive()) == "slow finished"
        process.send(call("1", "echo", text="again"))
        assert text_of(process.receive()) == "again"
        assert ends_at_eof(process)


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
def test_a_cancelled_request_does_not_delay_the_exit(modern: bool, notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "60", env=notes.env) as process:
        if not modern:
            process.send(INITIALIZE, INITIALIZED)
        process.send(call(1, "slow", modern=modern, seconds=60), call(2, "slow", modern=modern, seconds=60))
        notes.wait_for("slow started", times=2)
        for request_id in (1, 2):
            params: dict[str, Any] = {"requestId": request_id}
            if modern:
                params["_meta"] = MODERN_META
            process.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert ends_at_eof(process)
    assert notes.all().count("slow cancelled") == 2


# A client that does not read


def resident(process: Process) -> int:
    """Megabytes of memory."""
    return resident_memory(process) // 2**20


def test_memory_is_bounded_and_no_message_lost_while_the_client_does_not_read() -> None:
    number, text = 500, "x" * 50_000
    with runmcp() as process:
        process.send(INITIALIZE, INITIALIZED, call("warm", "immediate", text=text))
        process.receive(), process.receive()
        before = resident(process)
        sent = threading.Event()

        def send() -> None:
            for request_id in range(number):
                process.send(call(request_id, "immediate", text=text))
            sent.set()

        threading.Thread(target=send, daemon=True).start()
        stalled(process)
        assert not sent.is_set()
        assert resident(process) - before < 20  # the requests are 25 MB, the answers 50 MB
        assert {process.receive()["id"] for _ in range(number)} == set(range(number))
        assert sent.wait(5)
        assert ends_at_eof(process)


def stalled(process: Process) -> None:
    """Wait until the process has stopped working: its CPU time no longer grows."""
    seen: list[str] = []

    def no_growth() -> bool:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seen.append(f"{fields[11]} {fields[12]}")
        threading.Event().wait(0.1)
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    wait_until(no_growth, "the process stops working")
