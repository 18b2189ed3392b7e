"""Real processes for the tests: started, talked to, sent signals, and never left behind."""

from __future__ import annotations

import json
import os
import pwd
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
from mcp import StdioServerParameters

ROOT = Path(__file__).resolve().parent.parent.parent
MANAGE = [sys.executable, "-m", "django"]
DEADLINE = 45.0
"""Seconds within which what a test waits for has to happen, on a busy machine too."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A TCP port of the loopback interface, for a server that cannot be told to choose one and print it.

    A socket is bound to the port until the block is left, so the kernel gives the port to no other process. The
    server can listen on it nevertheless, because it sets SO_REUSEADDR as the socket does.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def tcp(port: int) -> str:
    return json.dumps([f"tcp:port={port}:interface=127.0.0.1"])


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for a child that runs the test project."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TEST_", "MCP_", "EXAMPLE_"))}
    clean.update(DJANGO_SETTINGS_MODULE="tests.project.settings", PYTHONPATH=str(ROOT))
    clean.update(changes)
    return clean


def shared_cache(folder: Path) -> dict[str, str]:
    """The environment of processes that share Django's default cache."""
    backend = "django.core.cache.backends.filebased.FileBasedCache"
    return {"TEST_CACHES": json.dumps({"default": {"BACKEND": backend, "LOCATION": str(folder)}})}


def parameters(*arguments: str, **changes: str) -> StdioServerParameters:
    """For the SDK's client to start ``runmcp`` as its child."""
    return StdioServerParameters(
        command=MANAGE[0],
        args=[*MANAGE[1:], "runmcp", *arguments],
        env=environment(**changes),
        cwd=ROOT,
    )


class Process:
    """A child process whose standard error (and output, if asked for) is read as it comes."""

    def __init__(
        self,
        command: list[str],
        *,
        env: dict[str, str],
        stdin: int | IO[Any] | None = subprocess.PIPE,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        cwd: Path = ROOT,
        **options: Any,
    ) -> None:
        self._changed = threading.Condition()
        self._written = bytearray()
        self._is_read = False
        """Whether everything is read: it has ended, and so have its children."""
        self.popen = subprocess.Popen(
            command, env=env, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, cwd=cwd, **options
        )
        assert self.popen.stderr is not None
        self._stderr = self.popen.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Read all the time, so that the pipe never fills up."""
        waiting = select.poll()  # select.select() refuses descriptors from 1,024 on
        waiting.register(self._stderr, select.POLLIN)
        while not self._is_read:
            waiting.poll()
            with self._changed:
                self._take()
                self._changed.notify_all()

    def _take(self) -> None:
        """Read what the pipe holds now."""
        if not self._is_read:
            with suppress(BlockingIOError):
                data = os.read(self._stderr, 1 << 20)  # no pipe holds more
                self._written += data
                self._is_read = not data

    def _text(self) -> str:
        """The complete lines that it has written to standard error before this call."""
        self._take()
        end = len(self._written) if self._is_read else self._written.rfind(b"\n") + 1
        return self._written[:end].decode(errors="replace")

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        with self._changed:
            return self._text()

    def wait_for(self, pattern: str, timeout: float = DEADLINE) -> re.Match[str]:
        """Wait until standard error matches; fails with what there is instead."""
        end = time.monotonic() + timeout
        with self._changed:
            while not (found := re.search(pattern, text := self._text())):
                left = end - time.monotonic()
                if left <= 0 or (self.popen.poll() is not None and self._is_read):
                    raise AssertionError(f"no {pattern!r} in:\n{text}")
                self._changed.wait(min(left, 0.2))
        return found

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Write JSON-RPC messages, or raw lines, to its standard input."""
        assert self.popen.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            self.popen.stdin.write(line)
        self.popen.stdin.flush()

    def receive(self, timeout: float = DEADLINE) -> dict[str, Any]:
        """The next JSON-RPC message on its standard output."""
        assert self.popen.stdout is not None
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(self.popen.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(timeout)
        if not found or not found[0]:
            raise AssertionError(f"nothing came within {timeout} s; standard error:\n{self.errors}")
        message: dict[str, Any] = json.loads(found[0])
        return message

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout: float = DEADLINE) -> int:
        """Its exit status; fails if it does not end in time."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s; standard error:\n{self.errors}") from None
        self._reader.join(DEADLINE)
        return status

    def output(self) -> bytes:
        """What is left on its standard output, up to the end."""
        assert self.popen.stdout is not None
        rest: bytes = self.popen.stdout.read()
        return rest

    def end(self) -> None:
        """Make sure that it is gone, and close the pipes."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self._reader.join(DEADLINE)
        with self._changed:
            self._is_read = True
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[Process]:
    process = Process(command, **options)
    try:
        yield process
    finally:
        process.end()


@contextmanager
def runmcp(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> Iterator[Process]:
    """``manage.py runmcp`` of the test project, with changes to its environment."""
    with running([*MANAGE, "runmcp", *arguments], env=environment(**(env or {})), **options) as process:
        yield process


@contextmanager
def serving_http(
    *arguments: str, transport: str = "http", env: dict[str, str] | None = None, **options: Any
) -> Iterator[tuple[Process, str]]:
    """``runmcp`` over HTTP, once it listens: the process and its address."""
    changes = {"TEST_ENDPOINTS": tcp(0), **(env or {})}
    with runmcp("--transport", transport, *arguments, env=changes, **options) as process:
        yield process, process.wait_for(r"is at (http://[\d.]+:\d+)")[1]


def wait_until(reached: Callable[[], Any], what: str, timeout: float = DEADLINE) -> Any:
    """Wait for something outside any process under test, such as a file or a port."""
    end = time.monotonic() + timeout
    while not (value := reached()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.01)
    return value


def wait_until_answered(
    ask: Callable[[], object],
    unavailable: type[Exception],
    process: subprocess.Popen[bytes],
    name: str,
    log: Path | None = None,
) -> None:
    """Wait until a server that was just started answers ``ask``, which raises ``unavailable`` until then."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            ask()
        except unavailable:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{name} does not start.\n{log.read_text() if log else ''}") from None
            time.sleep(0.02)
        else:
            return


def manage(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command of the test project in a process of its own, once it has ended."""
    return subprocess.run(
        [*MANAGE, *arguments],
        env=environment(**changes),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def must_be_installed(missing: str) -> NoReturn:
    """End a test whose programs are missing: it is skipped only where they cannot be installed."""
    (pytest.skip if os.geteuid() != 0 else pytest.fail)(missing)


def unprivileged(program: str, *names: str) -> dict[str, Any]:
    """Options for a child process whose program refuses to run as root: the first of these users that exists."""
    if os.geteuid() != 0:
        return {}
    for name in names:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise AssertionError(f"{program} refuses to run as root, and there is no user {' or '.join(names)}.")


class Notes:
    """What the test project has noted: see tests/project/notes.py."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def env(self) -> dict[str, str]:
        return {"TEST_NOTES": str(self.path)}

    def all(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def wait_for(self, note: str, times: int = 1, timeout: float = DEADLINE) -> None:
        wait_until(lambda: self.all().count(note) >= times, f"{times} x {note!r}; noted: {self.all()}", timeout)


# JSON-RPC by hand, for what a well-behaved client would not send

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": "initialize",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call(request_id: int | str, tool: str, *, modern: bool = False, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if modern:
        params["_meta"] = MODERN_META
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def text_of(answer: dict[str, Any]) -> str:
    """The text of a tool's answer."""
    text: str = answer["result"]["content"][0]["text"]
    return text
