"""The project of tests/project/daphne_limits.py as a process."""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.support.harness import DEADLINE, Notes, Process, environment, runmcp, running

COMMAND = ("--transport", "http", "--http-server", "tests.project.daphne_limits.build_daphne")

LITTLE = 40_000_000
"""Bytes by which a process may grow that would have to hold a few times as much."""


def resident_memory(process: Process) -> int:
    """The bytes that it has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None, "the process is gone"
    return int(found[1]) * 1024


def peak_memory(process: Process) -> int:
    """The most bytes that it and its workers have had in memory so far."""
    pids, size = [process.pid], 0
    for pid in pids:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found is not None
        size += int(found[1]) * 1024
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return size


@contextmanager
def bounded_over_tls(directory: Path, **options: object) -> Iterator[tuple[Process, Callable[[], ssl.SSLSocket]]]:
    """``runmcp`` with an ``mcp_serving.daphne.Server`` that speaks TLS, and what makes a connection to it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    key, chain = directory / "key.pem", directory / "chain.pem"
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    trusting.set_alpn_protocols(["h2", "http/1.1"])
    endpoint = f"ssl:port=0:interface=127.0.0.1:privateKey={key}:certKey={chain}"
    env = {"TEST_DAPHNE": json.dumps(options), "TEST_ENDPOINTS": json.dumps([endpoint])}
    with runmcp(*COMMAND, env=env) as process:
        port = int(process.wait_for(r"is at https://127\.0\.0\.1:(\d+)/mcp")[1])

        def connect() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
            return trusting.wrap_socket(plain, server_hostname="localhost")

        yield process, connect


@contextmanager
def bounded(
    notes: Notes | None = None, *, guarded: bool = True, backlog: int = 50, **options: object
) -> Iterator[tuple[Process, str]]:
    """An ``mcp_serving.daphne.Server``: that of ``runmcp``, or one that is run by itself, without a guard."""
    env = {
        "TEST_DAPHNE": json.dumps(options),
        "TEST_ENDPOINTS": json.dumps([f"tcp:port=0:interface=127.0.0.1:backlog={backlog}"]),
        **(notes.env if notes else {}),
    }
    if guarded:
        with runmcp(*COMMAND, env=env) as process:
            yield process, process.wait_for(r"is at (http://[\d.]+:\d+)")[1]
        return
    command = [sys.executable, "-m", "tests.project.daphne_limits"]
    with running(command, env=environment(**env)) as process:
        yield process, "http://" + process.wait_for(r"Listening on TCP address ([\d.]+:\d+)")[1]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
