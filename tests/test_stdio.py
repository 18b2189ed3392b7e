"""Over stdio: the wire carries JSON-RPC and nothing else, and no call is lost."""

from __future__ import annotations

import json
import signal

from tests.harness import INITIALIZE, INITIALIZED, Events, call, runmcp, text_of


def test_piped_lines_are_answered_before_the_process_exits(events: Events) -> None:
    with runmcp(env=events.env) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "slow", seconds=1), call(2, "echo", text="quick"))
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
        answers = {answer["id"]: answer for answer in map(json.loads, process.output().splitlines())}
    assert text_of(answers[1]) == "slow finished"
    assert text_of(answers[2]) == "quick"
    assert events.all() == ["lifespan entered", "slow started", "slow finally", "slow finished", "lifespan left"]


def test_sigterm_ends_an_idle_process_at_once_with_stdin_open(events: Events) -> None:
    with runmcp(env=events.env) as process:
        process.wait_for("is on standard input and output")
        process.signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert "Traceback" not in process.errors
    assert events.all() == ["lifespan entered", "lifespan left"]
