"""How stdio ends: by a signal, at a terminal, with the host's goodbye, or with a host that is simply gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress

import pytest
from mcp_types import CONNECTION_CLOSED

from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    ROOT,
    Notes,
    Process,
    call,
    environment,
    runmcp,
    text_of,
)
from tests.support.terminal import at_a_terminal

pytestmark = pytest.mark.process

READY = "is on standard input and output"
PROMPTLY = 5.0
"""Seconds; far below every timeout that could hide a process that does not end by itself."""


def close_stdin(process: Process) -> None:
    assert process.popen.stdin is not None
    with suppress(BrokenPipeError):
        process.popen.stdin.close()


def ended_cleanly(process: Process, status: int = 0, timeout: float = PROMPTLY) -> bool:
    assert process.wait(timeout) == status, process.errors
    return "Traceback" not in process.errors and "Exception ignored" not in process.errors


# Idle


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_an_idle_process_at_once_while_standard_input_is_open(
    number: signal.Signals, notes: Notes
) -> None:
    with runmcp(env=notes.env) as process:
        process.wait_for(READY)
        process.signal(number)
        assert ended_cleanly(process)
        assert f"Shutting down: received {number.name}." in process.errors
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_idle_worker_threads_do_not_delay_the_exit(notes: Notes) -> None:
    with runmcp(env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, *(call(number, "echo", text="a thread") for number in range(10)))
        assert len([process.receive() for _ in range(11)]) == 11
        process.signal(signal.SIGTERM)
        assert ended_cleanly(process)
    assert notes.all() == ["lifespan entered", "lifespan left"]


# At a terminal


def test_the_first_ctrl_c_ends_it_at_a_terminal(notes: Notes) -> None:
    with at_a_terminal(env=notes.env) as (process, terminal):
        process.wait_for(READY)
        terminal.type(b"\x03")
        assert ended_cleanly(process)
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_ctrl_c_while_it_starts_leaves_no_traceback(notes: Notes) -> None:
    with at_a_terminal(env={**notes.env, "TEST_LIFESPAN": "slow start"}) as (process, terminal):
        notes.wait_for("lifespan starting")
        terminal.type(b"\x03")
        assert ended_cleanly(process)


def test_sigterm_ends_it_at_a_terminal(notes: Notes) -> None:
    with at_a_terminal(env=notes.env) as (process, _):
        process.wait_for(READY)
        process.signal(signal.SIGTERM)
        assert ended_cleanly(process)
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_a_terminal_that_hangs_up_ends_it(notes: Notes) -> None:
    with at_a_terminal(env=notes.env) as (process, terminal):
        process.wait_for(READY)
        terminal.hang_up()
        assert ended_cleanly(process)
    assert notes.all() == ["lifespan entered", "lifespan left"]


# While the server's lifespan is still being entered


@pytest.mark.parametrize("how", [signal.SIGTERM, "EOF"])
def test_a_slow_start_is_cancelled_by_a_signal_or_the_end_of_input(how: signal.Signals | str, notes: Notes) -> None:
    with runmcp(env={**notes.env, "TEST_LIFESPAN": "slow start"}) as process:
        notes.wait_for("lifespan starting")
        if isinstance(how, signal.Signals):
            process.signal(how)
        else:
            close_stdin(process)
        assert ended_cleanly(process)
    assert notes.all() == ["lifespan starting"]


# The host closes standard input


def test_calls_in_flight_at_the_end_of_input_are_answered(notes: Notes) -> None:
    with runmcp(env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=0.5), call(2, "block", seconds=0.5))
        notes.wait_for("slow started")
        notes.wait_for("block started")
        close_stdin(process)
        assert ended_cleanly(process)
        answers = {answer["id"]: answer for answer in map(json.loads, process.output().splitlines())}
    assert text_of(answers[1]) == "slow finished"
    assert text_of(answers[2]) == "block finished"
    assert notes.all()[-1] == "lifespan left"


@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_question_fails_when_the_client_has_closed_standard_input(asked: str, notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "60", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        if asked == "before":
            process.send(call(1, "ask"))
            assert process.receive()["method"] == "elicitation/create"
        else:
            process.send(call(1, "ask_later", seconds=0.5))
            notes.wait_for("ask_later started")
        close_stdin(process)
        assert ended_cleanly(process)
        answer = json.loads(process.output().splitlines()[-1])
    assert answer["id"] == 1
    assert "closed the connection" in json.dumps(answer)
    assert "error" not in answer or answer["error"]["code"] == CONNECTION_CLOSED


@pytest.mark.parametrize("tool", ["slow", "block"])
def test_when_a_host_says_goodbye_the_lifespan_is_left_in_time(tool: str, notes: Notes) -> None:
    """Hosts close stdin, send SIGTERM two seconds later, and SIGKILL two seconds after that."""
    with runmcp("--shutdown-timeout", "30", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, tool, seconds=20))
        notes.wait_for(f"{tool} started")
        close_stdin(process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.popen.wait(2)
        process.signal(signal.SIGTERM)
        assert ended_cleanly(process, status=1, timeout=2)
        assert f"tools/call '{tool}'" in process.errors
    assert notes.all().count("lifespan left") == 1
    if tool == "slow":
        assert notes.all()[-3:] == ["slow cancelled", "slow finally", "lifespan left"]


def test_a_thread_that_outlasts_the_deadline_is_named_and_does_not_delay_the_exit(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "1", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "block", seconds=60))
        notes.wait_for("block started")
        process.signal(signal.SIGTERM)
        assert ended_cleanly(process, status=1)
        assert "tools/call 'block'" in process.errors
    assert notes.all() == ["lifespan entered", "block started", "lifespan left"]


def test_a_response_that_nobody_reads_does_not_outlast_the_deadline(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "0.5", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "big_at_once", length=16_000_000))
        process.receive()
        assert process.popen.stdout is not None
        process.popen.stdout.read(1)  # the answer has begun
        process.signal(signal.SIGTERM)
        assert ended_cleanly(process, status=1)
        assert "tools/call 'big_at_once'" in process.errors
    assert notes.all() == ["lifespan entered", "lifespan left"]


# The host is gone


@pytest.mark.parametrize("wire", ["pipe", "socket"])
def test_calls_of_a_host_that_no_longer_reads_are_cancelled_at_once(wire: str, notes: Notes) -> None:
    ours, its = socket.socketpair() if wire == "socket" else map(os.fdopen, os.pipe(), ["rb", "wb"])
    with ours, its, runmcp("--shutdown-timeout", "60", env=notes.env, stdout=its.fileno()) as process:
        its.close()
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=60), call(2, "slow", seconds=60))
        notes.wait_for("slow started", times=2)
        ours.close()
        assert ended_cleanly(process)
    assert process.errors.count("no longer reads standard output") == 1
    assert notes.all().count("slow cancelled") == notes.all().count("slow finally") == 2
    assert notes.all()[-1] == "lifespan left"


def test_a_host_that_stops_reading_after_it_closed_standard_input_is_logged_once(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "60", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=60))
        notes.wait_for("slow started")
        close_stdin(process)
        process.wait_for("standard input was closed")
        assert process.popen.stdout is not None
        process.popen.stdout.close()
        assert ended_cleanly(process)
    assert process.errors.count("no longer reads standard output") == 1
    assert notes.all()[-3:] == ["slow cancelled", "slow finally", "lifespan left"]


def test_a_host_that_dies_takes_all_three_streams_and_the_cleanup_still_runs(notes: Notes) -> None:
    host = subprocess.Popen(
        [*MANAGE, "runmcp", "--shutdown-timeout", "60"],
        env=environment(**notes.env),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert host.stdin is not None
    assert host.stdout is not None
    assert host.stderr is not None
    try:
        for message in (INITIALIZE, INITIALIZED, call(1, "slow", seconds=60), call(2, "echo", text="a thread")):
            host.stdin.write(json.dumps(message).encode() + b"\n")
        host.stdin.flush()
        notes.wait_for("slow started")
        for pipe in (host.stdin, host.stdout, host.stderr):
            pipe.close()
        assert host.wait(PROMPTLY) == 0
    finally:
        host.kill()
        host.wait()
    assert notes.all()[-3:] == ["slow cancelled", "slow finally", "lifespan left"]


# A fault of the SDK


def test_if_the_sdk_fails_the_process_says_so_and_ends_with_an_error() -> None:
    env = {"TEST_MCP_SERVING": json.dumps({"SERVER": "tests.project.broken_sdk.server"})}
    with runmcp(env=env) as process:
        process.send(INITIALIZE, INITIALIZED, call(2, "break_sdk"))
        while process.receive().get("id") != 2:
            pass
        process.send(call(3, "break_sdk"))
        assert process.wait(PROMPTLY) == 1
        assert "Shutting down: serving over stdio has ended by itself." in process.errors
        assert "the SDK is broken" in process.errors
