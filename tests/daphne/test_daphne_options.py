"""The caller's Daphne server is served as given: its options, its endpoints, what a subclass overrides."""

from __future__ import annotations

import inspect
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from daphne.server import Server
from mcp import Client

from mcp_serving.daphne import Server as BoundedServer
from tests.support.harness import ROOT, Notes, Process, runmcp
from tests.support.raw_http import Request


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str, Path, Notes]]:
    """With every option in use, on a port of the system's choice and on a UNIX socket."""
    directory = tmp_path_factory.mktemp("daphne")
    notes = Notes(directory / "notes")
    unix = directory / "socket"
    endpoints = json.dumps(["tcp:port=0:interface=127.0.0.1", f"unix:{unix}"])
    command = ("--transport", "http", "--http-server", "tests.project.daphnes.build")
    with runmcp(*command, env={**notes.env, "TEST_ENDPOINTS": endpoints}) as process:
        address = process.wait_for(rf"is at (\S+)/prefix/mcp.* http://unix:{unix}:/prefix/mcp")[1]
        yield process, address, unix, notes


@pytest.mark.process
def test_port_0_is_announced_as_the_port_that_was_bound(served: tuple[Process, str, Path, Notes]) -> None:
    _, address, _, _ = served
    assert not address.endswith(":0")
    assert Request(address, "/prefix/quick/").read() == b"quick"


@pytest.mark.process
def test_the_sdks_client_is_served_below_the_root_path(served: tuple[Process, str, Path, Notes]) -> None:
    _, address, _, _ = served

    async def talk() -> None:
        for mode in ("auto", "legacy"):
            async with Client(f"{address}/prefix/mcp", mode=mode) as client:
                assert (await client.call_tool("state", {})).content[0].text == "shared"  # type: ignore[union-attr]

    anyio.run(talk)


@pytest.mark.process
def test_a_unix_socket_is_served_too(served: tuple[Process, str, Path, Notes]) -> None:
    _, _, unix, _ = served
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(unix))
        connection.sendall(b"GET /prefix/quick/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert b"quick" in received


@pytest.mark.process
def test_proxy_headers_and_an_overridden_create_application_shape_the_scope(
    served: tuple[Process, str, Path, Notes],
) -> None:
    _, address, _, _ = served
    headers = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Port": "4711", "X-Forwarded-Proto": "https"}
    assert json.loads(Request(address, "/prefix/scope/", headers=headers).read()) == {
        "client": ["192.0.2.7", 4711],
        "scheme": "https",
        "root_path": "/prefix",
        "added": "by create_application",
    }


@pytest.mark.process
def test_the_server_name_is_in_the_responses(served: tuple[Process, str, Path, Notes]) -> None:
    _, address, _, _ = served
    answer = Request(address, "/prefix/quick/")
    answer.read()
    assert answer.header("server") == "own-name"


@pytest.mark.process
def test_the_http_timeout_is_in_force(served: tuple[Process, str, Path, Notes]) -> None:
    _, address, _, _ = served
    answer = Request(address, "/prefix/slow-async/?seconds=8")
    answer.read()
    assert answer.status == 503
    assert answer.seconds < 4


@pytest.mark.process
def test_the_action_logger_hears_of_requests(served: tuple[Process, str, Path, Notes]) -> None:
    _, address, _, notes = served
    Request(address, "/prefix/quick/?logged").read()
    notes.wait_for("http complete /prefix/quick/?logged")


@pytest.mark.process
def test_the_builder_and_the_hooks_of_daphne_are_called_once(served: tuple[Process, str, Path, Notes]) -> None:
    _, _, _, notes = served
    noted = [notes.all().count(note) for note in ("built", "own run", "ready", "own listen_success")]
    assert noted == [1, 1, 1, 2]


@pytest.mark.process
def test_verbosity_2_logs_what_twisted_says_and_not_in_a_circle(notes: Notes) -> None:
    env = {**notes.env, "TEST_ENDPOINTS": '["tcp:port=0:interface=127.0.0.1"]', "TEST_VERBOSITY": "2"}
    # Given as an object, not as a callable.
    command = ("--transport", "http", "--http-server", "tests.project.daphne_object.server")
    with runmcp(*command, env=env) as process:
        address = process.wait_for(r"is at (\S+)/prefix/mcp")[1]
        assert Request(address, "/prefix/quick/").read() == b"quick"
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.errors
        assert process.errors.count("\n") < 200
        assert "HTTPFactory starting" in process.errors
    # The signal has let the overridden run() return.
    assert [note for note in notes.all() if note.startswith("own run")] == ["own run", "own run returned"]


@pytest.mark.process
def test_the_builder_is_never_called_for_stdio(notes: Notes) -> None:
    with runmcp("--transport", "stdio", "--http-server", "tests.project.daphnes.build", env=notes.env) as process:
        process.wait_for("is on standard input and output")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
    assert "built" not in notes.all()


def test_the_docs_speak_of_every_option_of_daphne() -> None:
    page = (ROOT / "docs" / "daphne.md").read_text()
    options = [*inspect.signature(Server.__init__).parameters, *inspect.signature(BoundedServer.__init__).parameters]
    options = [option for option in options if option not in ("self", "args", "kwargs")]
    assert [option for option in options if f"`{option}`" not in page] == []
