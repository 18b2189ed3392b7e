"""A process that is forked is like one that starts with an empty interpreter; see tests/support/fork_server.py."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import OWN_IMPORTS, PRELOADED
from tests.support.harness import MANAGE, ROOT, environment, runmcp, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.environ.get("FORK_SERVER") == "0", reason="FORK_SERVER=0: nothing is forked"),
]

DESCRIBE = """
import __main__, gc, json, os, signal, sys
streams = [sys.stdin, sys.stdout, sys.stderr]
names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through")
told = {
    "streams": [[str(getattr(each, name)) for name in names] for each in streams],
    "buffers": [type(each.buffer).__name__ for each in streams],
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:4],
    "arguments": [sys.argv, sys.orig_argv],
    "path": sys.path,
    "main": [getattr(__main__, "__file__", None), getattr(__main__.__spec__, "name", None), __main__.__name__],
    "environment": {**os.environ, "TEST_OWN_IMPORTS": ""},
    "folder": os.getcwd(),
    "parent": os.getppid(),
    "group and session": [None if each == os.getpid() else each for each in (os.getpgid(0), os.getsid(0))],
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals()) if number not in (9, 19)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "flags": str(sys.flags),
}
print(json.dumps([told, gc.get_freeze_count() > 0]))
"""
COMMANDS = {
    "-m": [*MANAGE, "shell", "--verbosity", "0", "--command", DESCRIBE],
    "manage.py": [sys.executable, "manage.py", "shell", "--verbosity", "0", "--command", DESCRIBE],
    "-c": [sys.executable, "-c", DESCRIBE, "argument"],
}


def described(command: str = "-m", *, own_imports: bool, **options: Any) -> Any:
    """What a process says of itself, and whether it was forked."""
    done = subprocess.run(
        COMMANDS[command],
        env=environment(**(OWN_IMPORTS if own_imports else {})),
        capture_output=True,
        text=True,
        check=True,
        **options,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> None:
    """Wait until the first processes have started it."""
    wait_until(lambda: described(own_imports=False, cwd=ROOT)[1], "a process is forked")


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"stdin": subprocess.DEVNULL}], ids=str)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_forked_process_has_what_a_new_interpreter_has(command: str, options: dict[str, Any]) -> None:
    forked, is_forked = described(command, own_imports=False, cwd=ROOT, **options)
    expected, expected_is_forked = described(command, own_imports=True, cwd=ROOT, **options)
    assert forked == expected
    assert (is_forked, expected_is_forked) == (True, False)
    assert forked["parent"] == os.getpid()


def test_at_a_terminal_its_streams_are_those_of_a_new_interpreter() -> None:
    controller, terminal = pty.openpty()
    try:
        forked, is_forked = described("-c", own_imports=False, stdin=terminal)
        expected, expected_is_forked = described("-c", own_imports=True, stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert forked == expected
    assert (is_forked, expected_is_forked) == (True, False)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os._exit(4)", 4),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_its_exit_status_reaches_the_test(code: str, status: int) -> None:
    done = subprocess.run([*MANAGE, "shell", "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (code == "1 / 0")


def test_it_gets_signals_and_is_a_child_that_can_be_waited_for() -> None:
    with runmcp() as process:
        process.wait_for("is on standard input and output")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_folder_with_the_name_of_a_package_hides_it(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("print('of the project')")
    command = [sys.executable, "-m", "uvicorn"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout == "of the project\n"


def test_code_that_asks_what_is_imported_is_run_by_a_new_interpreter() -> None:
    command = [sys.executable, "-c", "import sys; print('django' in sys.modules)"]
    assert subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True).stdout == "False\n"


def test_what_is_preloaded_belongs_to_no_project() -> None:
    assert not [name for name in PRELOADED if name.startswith(("mcp_serving", "tests", "example_project"))]
