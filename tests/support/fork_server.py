"""Starts Python processes for the tests by forking a process that has already imported the large packages.

A test that starts ``manage.py runmcp`` needs more CPU time for the imports of the process than for what it tests.
``fork_instead_of_exec`` makes ``subprocess.Popen`` ask the fork server for such a process. For the test it is a child
process like any other, with its own process id, arguments, environment, folder, standard streams and exit status. Only
the packages in ``PRELOADED`` are imported already, and nothing of this project.

``subprocess.Popen`` starts all other commands as usual. It also does so where a fork could make a difference (see
``_can_be_forked``), and until the fork server has imported the packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PRELOADED = (
    # No twisted.internet.reactor, nor what imports it: a reactor opens files, which forked processes would share.
    "autobahn.websocket.protocol",
    "channels.auth",
    "channels.db",
    "channels.routing",
    "channels_redis.core",
    "django.contrib.admin",
    "django.contrib.auth.hashers",
    "django.contrib.sessions.backends.db",
    "django.core.cache.backends.locmem",
    "django.core.handlers.asgi",
    "django.core.management",
    "django.db.backends.sqlite3.base",
    "django.forms",
    "django.template.backends.django",
    "django.views.debug",
    "hypercorn.run",
    "jsonschema",
    "jwcrypto.jwk",
    "jwt",
    "mcp.server.auth.provider",
    "mcp.server.mcpserver",
    "mcp.server.sse",
    "mcp.server.stdio",
    "mcp.server.streamable_http_manager",
    "oauthlib.oauth2",
    "psycopg",
    "pymysql",
    "redis.asyncio",
    "requests",
    "twisted.internet.endpoints",
    "twisted.web.http",
    "uvicorn.main",
    "uvicorn.protocols.http.h11_impl",
)
MODULES = (
    "bench.publisher",
    "daphne",
    "django",
    "gunicorn",
    "hypercorn",
    "mcp_serving",
    "tests.project.daphne_limits",
    "uvicorn",
)
"""What ``python -m`` runs in a forked process. ``manage.py`` and the code after ``-c`` run in one, too."""

OWN_IMPORTS = {"TEST_OWN_IMPORTS": "1"}
"""In the environment of a process, this starts it with a new interpreter. For tests of what a process imports."""

MAX_REQUEST = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
"""From prctl(2): orphaned processes among its descendants become children of this process."""


def fork_instead_of_exec() -> None:
    """Let ``subprocess.Popen`` fork Python processes from now on, in this process."""
    server = _ForkServer()
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(execute)

    def execute_or_fork(popen: subprocess.Popen[Any], *args: Any) -> None:
        options = signature.bind(popen, *args).arguments
        if not (_can_be_forked(options) and server.is_ready()):
            execute(popen, *args)
            return
        sys.audit("subprocess.Popen", options["args"][0], options["args"], options["cwd"], options["env"])
        popen.pid = server.fork(options)
        popen._child_created = True  # type: ignore[attr-defined]
        streams = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*[options[name] for name in streams])  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]


def _can_be_forked(options: Mapping[str, Any]) -> bool:
    """Whether a forked process is the same as one that starts with an empty interpreter."""
    args, cwd = options["args"], options["cwd"]
    command = list(args) if isinstance(args, list | tuple) else [args]
    if len(command) < 3 or command[0] != sys.executable:
        return False
    if command[1] == "-c":
        if "sys.modules" in command[2]:  # the code asks which packages are imported
            return False
    elif not (Path(command[1]).name == "manage.py" or (command[1] == "-m" and command[2] in MODULES)):
        return False
    env = os.environ if options["env"] is None else options["env"]
    if OWN_IMPORTS.keys() & env.keys() or _read_at_start(env) != _read_at_start(os.environ):
        return False
    if options["preexec_fn"] or options["pass_fds"] or not options["close_fds"] or options["shell"]:
        return False
    if options["uid"] is not None or options["gid"] is not None or options["gids"] is not None:
        return False
    if options["umask"] >= 0 or options["process_group"] >= 0:
        return False
    folders = [Path(cwd or "."), *map(Path, filter(None, env.get("PYTHONPATH", "").split(":")))]
    return folders[0].is_dir() and not any(_hides_a_package(folder) for folder in folders)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that are read only once: by an interpreter at its start, by a package at its import."""
    prefixes = ("PYTHON", "LC_", "LANG", "OTEL_")
    return {name: env[name] for name in env if name.startswith(prefixes) and name != "PYTHONPATH"}


def _hides_a_package(folder: Path) -> bool:
    """Whether a module in a folder of ``sys.path`` has the name of an installed package."""
    names = {name.partition(".")[0] for name in PRELOADED} | {
        "anyio",
        "asgiref",
        "pydantic",
        "sitecustomize",
        "starlette",
    }
    return any((folder / name).exists() or (folder / f"{name}.py").exists() for name in names)


class _ForkServer:
    """The process that forks, as the tests see it. It starts with the first request, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._ready = False

    def is_ready(self) -> bool:
        """Whether it has imported the packages. The first question starts it."""
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            if not self._ready:
                with contextlib.suppress(BlockingIOError):
                    self._ready = self._socket.recv(1, socket.MSG_DONTWAIT) == b"+"
            return self._ready

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._bytecode = tempfile.TemporaryDirectory(prefix="mcp-serving-bytecode-")
        command = [sys.executable, str(Path(__file__)), str(its.fileno()), self._bytecode.name]
        with its:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()]
            )
        return ours

    def fork(self, options: Mapping[str, Any]) -> int:
        """Start a process; return its id.

        Raises:
            RuntimeError: the fork server has ended.
        """
        request = {
            "command": list(options["args"]),
            "cwd": os.path.abspath(options["cwd"] or "."),
            "env": dict(os.environ if options["env"] is None else options["env"]),
            "new_session": options["start_new_session"],
        }
        given = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        streams = [number if stream < 0 else stream for number, stream in enumerate(given)]
        with self._lock:
            assert self._socket is not None
            adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                answer = self._socket.recv(32)
            finally:
                adopt_orphans(False)
        if not answer:
            raise RuntimeError(f"The fork server has ended with status {self._process.wait()}.")
        return int(answer)


def adopt_orphans(yes: bool) -> None:
    """Turn it on or off that this process becomes the parent of processes whose own parent, its child, has ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# In the fork server


def serve(connection: socket.socket) -> list[str]:
    """Fork a process for each request. Returns in such a process, with its command."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
        if not request:
            os._exit(0)  # the tests have ended
        reader, writer = os.pipe()
        begin, own_end = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                os.close(own_end)
                os.read(begin, 1)  # returns when the fork server closes its end: then the process is adopted
                return become(json.loads(request), streams)
            os.write(writer, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)  # from here on, the process of the tests is the parent of the child
        connection.send(os.read(reader, 32))
        for number in (reader, writer, begin, own_end, *streams):
            os.close(number)


def become(request: dict[str, Any], streams: Sequence[int]) -> list[str]:
    """Give this process what ``subprocess.Popen`` gives to a process that it starts; return the command."""
    if request["new_session"]:
        os.setsid()
    copies = [os.dup(stream) for stream in streams]  # a stream may be 0, 1 or 2
    for number, stream in enumerate(copies):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.__stdin__ = opened_again(sys.stdin, 0)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = opened_again(sys.stdout, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = opened_again(sys.stderr, 2)  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    command: list[str] = request["command"]
    first = {"-c": "", "-m": request["cwd"]}.get(command[1], str(Path(command[1]).absolute().parent))
    given = filter(None, request["env"].get("PYTHONPATH", "").split(":"))
    sys.path[:] = [first, *dict.fromkeys([*given, *sys.path])]  # without duplicates, as the site module makes it
    sys.orig_argv = command
    return command


def opened_again(stream: Any, number: int) -> io.TextIOWrapper:
    """A standard stream as the interpreter opens it at its start, after its file descriptor was replaced."""
    writes = number > 0
    unbuffered = writes and stream.write_through  # PYTHONUNBUFFERED
    binary: Any = open(number, "wb" if writes else "rb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = stream.name
    text = io.TextIOWrapper(
        binary,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if writes else None,
        line_buffering=not stream.write_through and (number == 2 or binary.isatty()),
        write_through=stream.write_through,
    )
    text.mode = stream.mode  # type: ignore[misc]
    return text


def main() -> list[str]:
    """Import the packages, say so, and serve. Returns in each forked process, with its command."""
    del sys.path[0]  # the folder of this file
    for name in PRELOADED:
        importlib.import_module(name)
    if sys.dont_write_bytecode:  # otherwise each process would compile the project
        sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[2]
    assert "twisted.internet.reactor" not in sys.modules
    assert threading.active_count() == 1, "only the thread that forks goes on in a forked process"
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # never undone: a collection in a forked process would copy the memory of all these modules
    connection.send(b"+")
    command = serve(connection)
    connection.detach()
    return command


if __name__ == "__main__":
    command = main()
    # Last, and outside of any function: an exception or an exit has the same effects as in a new interpreter.
    if command[1] == "-m":
        sys.argv = command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        if command[1] == "-c":
            sys.argv = ["-c", *command[3:]]
            code = compile(command[2], "<string>", "exec", dont_inherit=True)
        else:
            sys.argv = command[1:]
            sys.modules["__main__"].__file__ = os.path.abspath(command[1])
            code = compile(Path(command[1]).read_bytes(), os.path.abspath(command[1]), "exec", dont_inherit=True)
        exec(code, vars(sys.modules["__main__"]))
