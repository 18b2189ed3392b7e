"""The graceful shutdown over stdio: what was read is answered, questions included, and then the process is gone."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import suppress

import pytest

from tests.shutdown.test_shutdown_http import gone
from tests.support.harness import INITIALIZE, INITIALIZED, Notes, call, runmcp, text_of
from tests.support.http_client import listen

pytestmark = pytest.mark.process

EOF = "EOF"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, EOF])
def test_200_calls_over_stdio_are_answered_before_the_process_exits(end: signal.Signals | str, notes: Notes) -> None:
    with runmcp(env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, *(call(index, "slow", seconds=1) for index in range(200)))
        notes.wait_for("slow started", 200)
        assert process.popen.stdin is not None
        if isinstance(end, signal.Signals):
            process.signal(end)
            process.wait_for("Shutting down")
            process.send(call("too late", "echo", text="x"))
        else:
            process.popen.stdin.close()
        answers = [process.receive() for _ in range(201 if end is EOF else 202)]
        assert asyncio.run(gone(process)) == 0
        assert "Traceback" not in process.errors
    by_id = {answer["id"]: answer for answer in answers}
    assert [text_of(by_id[index]) for index in range(200)] == ["slow finished"] * 200
    if end is not EOF:
        assert "shutting down" in by_id["too late"]["error"]["message"]
    assert notes.all()[-1] == "lifespan left"


def test_progress_and_questions_get_through_while_draining_but_new_calls_do_not() -> None:
    with runmcp() as process:
        params = {"_meta": {"progressToken": "steps"}, "name": "ask_slowly", "arguments": {}}
        asking = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        process.send(INITIALIZE, INITIALIZED, asking)
        assert process.receive()["id"] == "initialize"
        assert process.receive()["params"]["message"] == "before"
        process.signal(signal.SIGTERM)
        process.wait_for("Shutting down")
        process.send(call(2, "echo", text="new"))
        assert "shutting down" in process.receive()["error"]["message"]
        question = process.receive()
        assert question["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"word": "yes"}}
        process.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert process.receive()["params"]["message"] == "after"
        assert text_of(process.receive()) == "yes"
        assert asyncio.run(gone(process)) == 0


def test_a_call_in_flight_can_be_cancelled_by_its_client_while_draining(notes: Notes) -> None:
    with runmcp("--shutdown-timeout", "30", env=notes.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=60))
        notes.wait_for("slow started")
        process.signal(signal.SIGTERM)
        process.wait_for("Shutting down")
        process.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        assert asyncio.run(gone(process)) == 0
        assert [json.loads(line)["id"] for line in process.output().splitlines()] == ["initialize"]
    assert notes.all() == ["lifespan entered", "slow started", "slow cancelled", "slow finally", "lifespan left"]


def test_a_subscription_ends_with_its_result(notes: Notes) -> None:
    with runmcp(env=notes.env) as process:
        process.send(listen(1))
        assert process.receive()["method"] == "notifications/subscriptions/acknowledged"
        process.signal(signal.SIGTERM)
        assert process.receive()["id"] == 1
        assert asyncio.run(gone(process, within=1.0)) == 0


def test_signals_without_pause_until_the_process_is_gone_still_end_it_with_0() -> None:
    with runmcp() as process:
        process.send(INITIALIZE)
        process.receive()
        with suppress(ProcessLookupError):
            while process.popen.poll() is None:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    process.signal(number)
                time.sleep(0.001)  # the storm itself, not a wait
        assert process.wait() == 0
        assert "Traceback" not in process.errors
        assert "KeyboardInterrupt" not in process.errors
