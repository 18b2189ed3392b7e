"""Standard input, output and error: closed at the start, or used by the project before the command begins."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    ROOT,
    call,
    environment,
    running,
    text_of,
    wait_until,
)

pytestmark = pytest.mark.process

ENTRY_POINT = [sys.executable, "-m", "mcp_serving"]
COMMANDS = pytest.mark.parametrize("command", [[*MANAGE, "runmcp"], ENTRY_POINT], ids=["runmcp", "python -m"])
WITH_DAPHNE = {"TEST_APPS": '["daphne"]'}
"""Django then loads Twisted, whose reactor takes the lowest free descriptor."""


def redirected(command: list[str], redirection: str) -> list[str]:
    return ["sh", "-c", f"exec {shlex.join(command)} {redirection}"]


# Closed descriptors


@COMMANDS
@pytest.mark.parametrize("transport", ["stdio", "both"])
@pytest.mark.parametrize(("redirection", "name"), [("<&-", "input"), (">&-", "output")])
def test_a_closed_standard_stream_is_an_error_in_one_line(
    command: list[str], transport: str, redirection: str, name: str
) -> None:
    done = subprocess.run(
        redirected([*command, "--transport", transport], redirection),
        env=environment(**WITH_DAPHNE),
        cwd=ROOT,
        input="",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"CommandError: Standard {name} is closed. An MCP client is connected to standard input and output; "
        "a service uses the transport http.\n"
    )


def test_with_all_three_closed_stdio_exits_with_1() -> None:
    command = redirected([*MANAGE, "runmcp"], "<&- >&- 2>&-")
    assert subprocess.run(command, env=environment(**WITH_DAPHNE), cwd=ROOT, timeout=60).returncode == 1


@COMMANDS
@pytest.mark.parametrize("apps", ["[]", WITH_DAPHNE["TEST_APPS"]], ids=["without daphne", "with daphne"])
def test_over_http_closed_descriptors_become_dev_null(command: list[str], apps: str, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(path) == 0

    env = environment(TEST_APPS=apps, TEST_ENDPOINTS=json.dumps([f"unix:{path}"]))
    with running(redirected([*command, "--transport", "http"], "<&- >&- 2>&-"), env=env) as process:
        transport = httpx2.HTTPTransport(uds=path)
        wait_until(listens, "it listens", timeout=60)
        with httpx2.Client(transport=transport, timeout=60) as client:
            assert client.get("http://localhost/nothing").status_code == 404
        descriptors = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]
        assert descriptors == ["/dev/null"] * 3
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


# What the project prints


def test_python_m_protects_standard_output_from_the_settings_and_the_apps() -> None:
    messages = b"".join(json.dumps(each).encode() + b"\n" for each in (INITIALIZE, INITIALIZED, call(1, "shout")))
    done = subprocess.run(
        [*ENTRY_POINT, "--settings", "tests.project.settings_that_print"],
        input=messages,
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert set(answers) == {"initialize", 1}
    assert text_of(answers[1]) == "the child read 0 bytes"
    for text in (
        b"printed by the settings",
        b"written by the settings to descriptor 1",
        b"printed by the app when it was ready",
        b"written by the app without a flush",
    ):
        assert text in done.stderr


def test_under_manage_py_only_text_from_before_the_command_reaches_standard_output() -> None:
    messages = b"".join(json.dumps(each).encode() + b"\n" for each in (INITIALIZE, INITIALIZED))
    done = subprocess.run(
        [*MANAGE, "runmcp", "--settings", "tests.project.settings_that_print"],
        input=messages,
        env=environment(PYTHONUNBUFFERED=""),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *printed, answer = done.stdout.splitlines()
    assert printed == [
        b"printed by the settings",
        b"written by the settings to descriptor 1",
        b"printed by the app when it was ready",
    ]
    assert json.loads(answer)["id"] == "initialize"
    assert b"written by the app without a flush" in done.stderr


def test_python_m_serves_http_too_and_takes_the_options_of_runmcp() -> None:
    env = environment(TEST_ENDPOINTS=json.dumps(["tcp:port=0:interface=127.0.0.1"]))
    with running([*ENTRY_POINT, "--transport", "http", "--server", "tests.project.mcp.server"], env=env) as process:
        address = process.wait_for(r"is at (http://127.0.0.1:\d+)/mcp")[1]
        assert httpx2.get(f"{address}/nothing", timeout=60).status_code == 404
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("tests.nowhere", r"ModuleNotFoundError: No module named 'tests.nowhere'\."),
        ("tests.project.broken_module", r"ZeroDivisionError: division by zero \(.*/broken_module.py, line 1\)\."),
    ],
)
def test_settings_that_cannot_be_imported_are_an_error_in_one_line(settings: str, message: str) -> None:
    done = subprocess.run(
        [*ENTRY_POINT, "--settings", settings], env=environment(), cwd=ROOT, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().count("\n") == 1
    assert re.fullmatch(rf"The settings or an app cannot be imported: {message}\n", done.stderr.decode())


# Twice in one process


def test_a_second_http_server_in_one_process_is_a_command_error() -> None:
    script = (
        "import os, signal, django; django.setup()\n"
        "from django.core.management import call_command, CommandError\n"
        "from tests.project import serving\n"
        "build = serving.build_daphne\n"
        "def build_and_stop():\n"
        "    server = build()\n"
        "    server.ready_callable = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return server\n"
        "serving.build_daphne = build_and_stop\n"
        "call_command('runmcp', transport='http')\n"
        "try: call_command('runmcp', transport='http')\n"
        "except CommandError as error: print(error)"
    )
    env = environment(TEST_ENDPOINTS=json.dumps(["tcp:port=0:interface=127.0.0.1"]))
    done = subprocess.run([sys.executable, "-c", script], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "Twisted's reactor runs once in a process, and it has run: start a new process.\n", (
        done.stderr
    )
