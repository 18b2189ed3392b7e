"""Clients that leave, applications that break: nobody else notices, and the log says what there is to say."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from http.client import IncompleteRead
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from channels.routing import ProtocolTypeRouter, URLRouter

from mcp_serving.shutdown.in_flight import InFlightRequests
from mcp_serving.web_servers.middleware import RequestTrackingMiddleware
from tests.support.asgi_servers import ALL, serving
from tests.support.harness import Notes, Process, call, serving_http, text_of, wait_until
from tests.support.raw_http import Request, exchange, headers_of, open_session, post

AT_ONCE = 10.0
"""Seconds on a busy machine; headers that are held back come with the first ping, after 15."""


class Served:
    def __init__(self, process: Process, address: str, notes: Notes) -> None:
        self.process = process
        self.address = address
        self.notes = notes

    def assert_quiet(self) -> None:
        """Nothing was said about killed applications, and there was no traceback."""
        assert "took too long" not in self.process.errors
        assert "Traceback" not in self.process.errors


@pytest.fixture(scope="module", params=ALL)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running server, with a Daphne that kills what lingers after one second instead of ten."""
    notes = Notes(tmp_path_factory.mktemp("served") / "notes")
    options = ["--application-close-timeout", "1"] if request.param == "daphne" else []
    env = {**notes.env, "TEST_DAPHNE": '{"application_close_timeout": 1}'}
    with serving(request.param, "tests.project.mounts", *options, env=env) as (process, address):
        yield Served(process, address, notes)


# Streams


@pytest.mark.process
def test_the_headers_of_a_get_stream_come_before_its_first_event(served: Served) -> None:
    session = open_session(served.address, "/mcp")
    stream = Request(served.address, "/mcp", headers={"Accept": "text/event-stream", "Mcp-Session-Id": session})
    assert stream.status == 200
    assert stream.seconds < AT_ONCE
    stream.leave()


@pytest.mark.process
def test_the_headers_of_an_sse_answer_come_before_its_first_event(served: Served) -> None:
    session = open_session(served.address, "/mcp")
    answer = post(served.address, "/mcp", call(1, "slow", seconds=2), session)
    assert answer.header("content-type").startswith("text/event-stream")
    assert text_of(json.loads(answer.event()["data"])) == "slow finished"
    assert time.monotonic() - answer.sent > answer.seconds + 0.2
    answer.leave()


@pytest.mark.process
def test_progress_reaches_a_modern_client_while_the_tool_works(served: Served) -> None:
    message = call(1, "count", modern=True, to=2, pause=2)
    message["params"]["_meta"] = {**message["params"]["_meta"], "progressToken": 1}
    answer = post(served.address, "/mcp", message)
    assert json.loads(answer.event()["data"])["params"]["progress"] == 1
    first = time.monotonic()
    assert json.loads(answer.event()["data"])["params"]["progress"] == 2
    assert time.monotonic() > first + 0.2
    answer.leave()


# A client that leaves in mid-call


@pytest.mark.process
@pytest.mark.parametrize("path", ["/mcp", "/json/mcp", "/stateless/mcp", "/wrapped/mcp"])
def test_a_modern_client_that_leaves_cancels_its_call_within_a_second(served: Served, path: str) -> None:
    name = f"modern {path}"
    request = post(served.address, path, call(1, "slow", modern=True, seconds=60, name=name), wait=False)
    served.notes.wait_for(f"{name} started")
    request.leave()
    served.notes.wait_for(f"{name} cancelled", timeout=1)
    served.assert_quiet()


@pytest.mark.process
@pytest.mark.parametrize("path", ["/mcp", "/json/mcp"])
def test_the_call_of_a_client_in_an_older_session_runs_on_without_it(served: Served, path: str) -> None:
    session = open_session(served.address, path)
    name = f"older {path}"
    request = post(served.address, path, call(1, "slow", seconds=0.7, name=name), session, wait=False)
    served.notes.wait_for(f"{name} started")
    request.leave()
    served.notes.wait_for(f"{name} finished")
    served.assert_quiet()
    answer = post(served.address, path, call(2, "echo", text="the session lives"), session)
    assert b"the session lives" in answer.read()


@pytest.mark.process
def test_the_result_that_a_client_missed_is_fetched_by_resuming(served: Served) -> None:
    session = open_session(served.address, "/resumable/mcp")
    answer = post(served.address, "/resumable/mcp", call(1, "slow", seconds=0.5, name="missed"), session)
    last_event = answer.event()["id"]
    served.notes.wait_for("missed started")
    answer.leave()
    served.notes.wait_for("missed finished")
    headers = {"Accept": "text/event-stream", "Mcp-Session-Id": session, "Last-Event-ID": last_event}
    resumed = Request(served.address, "/resumable/mcp", headers=headers)
    assert text_of(json.loads(resumed.event()["data"])) == "missed finished"
    resumed.leave()
    served.assert_quiet()


@pytest.mark.process
def test_a_client_that_leaves_before_a_thread_has_finished_costs_no_warning(served: Served) -> None:
    sessions = {path: open_session(served.address, path) for path in ("/mcp", "/json/mcp")}
    requests = [
        post(served.address, path, call(1, "block", seconds=2.2), sessions[path], wait=False) for path in sessions
    ]
    requests += [
        post(served.address, path, call(1, "block", modern=True, seconds=2.2), wait=False) for path in sessions
    ]
    served.notes.wait_for("block started", times=4)
    for request in requests:
        request.leave()
    served.notes.wait_for("block finished", times=4)
    served.assert_quiet()


@pytest.mark.process
def test_a_client_that_leaves_within_its_body_costs_no_traceback(served: Served) -> None:
    parts = urlsplit(served.address)
    for message in (call(1, "echo", text="x"), call(1, "echo", modern=True, text="x")):
        head = "".join(f"{name}: {value}\r\n" for name, value in headers_of(message).items())
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(f"POST /stateless/mcp HTTP/1.1\r\nHost: localhost\r\n{head}".encode())
            connection.sendall(b"Content-Length: 100\r\n\r\nhalf a body")
    assert b"next" in post(served.address, "/stateless/mcp", call(1, "echo", modern=True, text="next")).read()
    served.assert_quiet()


@pytest.mark.process
def test_a_client_cannot_replace_the_root_path(served: Served) -> None:
    """Under ``runmcp`` the header is ignored; under ``daphne`` the mount answers 404."""
    message = call(1, "echo", modern=True, text="served")
    headers = headers_of(message)
    replaced = Request(served.address, "/prefix/mcp", "POST", {**headers, "Daphne-Root-Path": "/prefix"}, message)
    assert b"served" not in replaced.read()
    assert replaced.status == 404
    served.assert_quiet()
    answer = Request(served.address, "/mcp", "POST", headers, message)
    assert b"served" in answer.read()


@pytest.mark.process
def test_whitespace_around_a_header_is_no_part_of_it(served: Served) -> None:
    message = call(1, "echo", modern=True, text="padded")
    headers = {name: f" {value} \t" for name, value in headers_of(message).items()}
    assert b"padded" in Request(served.address, "/mcp", "POST", headers, message).read()


# Applications that break, under the guard that runmcp puts around the outermost one


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Process, str]]:
    with serving_http("--http-server", "tests.project.mounts.build_daphne") as served:
        yield served


@pytest.mark.process
@pytest.mark.parametrize("path", ["/broken/", "/broken-middleware/"])
def test_an_exception_is_answered_at_once_and_logged_once(guarded: tuple[Process, str], path: str) -> None:
    process, address = guarded
    before = process.errors.count("RuntimeError: the application broke")
    seconds = []
    for _ in range(8):
        answer = Request(address, path)
        assert answer.status == 500
        seconds.append(answer.seconds)
        answer.read()
    assert min(seconds[1:]) < 0.5  # Daphne polls once a second, so that each answer after the first would take one
    wait_until(lambda: process.errors.count("RuntimeError: the application broke") - before >= 8, "the tracebacks")
    assert process.errors.count("RuntimeError: the application broke") - before == 8
    assert process.errors.count(f"GET '{path}' raised an exception") == 8


@pytest.mark.process
def test_an_application_that_does_not_answer_gets_a_500(guarded: tuple[Process, str]) -> None:
    process, address = guarded
    answer = Request(address, "/silent/")
    answer.read()
    assert answer.status == 500
    process.wait_for("GET '/silent/' was not answered")


@pytest.mark.process
def test_a_response_that_breaks_off_is_not_taken_for_a_whole_one(guarded: tuple[Process, str]) -> None:
    process, address = guarded
    with pytest.raises((IncompleteRead, ConnectionResetError)):
        Request(address, "/broken-stream/").read()
    with pytest.raises(ConnectionResetError):  # without chunks, only a reset tells it from a whole one
        exchange(address, b"GET /broken-stream/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
    process.wait_for("RuntimeError: the stream broke")


@pytest.mark.process
def test_daphne_keeps_cleaning_up_after_a_response_that_broke_off(guarded: tuple[Process, str]) -> None:
    _, address = guarded
    with pytest.raises((IncompleteRead, ConnectionResetError)):
        Request(address, "/broken-stream/").read()
    # Daphne's checker, which such a response would kill, forgets the connections that have ended.
    wait_until(lambda: Request(address, "/connections/").read() == b"1", "only the asking connection", timeout=5)


# The guard by itself


def scope_of(path: str = "/") -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": path, "headers": []}


def test_receive_repeats_the_disconnect() -> None:
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.extend([(await receive())["type"] for _ in range(4)])

    async def talk() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        queue.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        queue.put_nowait({"type": "http.disconnect"})

        async def send(message: Any) -> None: ...

        with anyio.fail_after(1):
            await RequestTrackingMiddleware(app, InFlightRequests())(scope_of(), queue.get, send)

    anyio.run(talk)
    assert received == ["http.request", "http.disconnect", "http.disconnect", "http.disconnect"]


def test_a_websocket_that_nobody_serves_is_refused_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def work() -> None:
        application = ProtocolTypeRouter({"http": URLRouter([])})
        await RequestTrackingMiddleware(application, InFlightRequests())(
            {"type": "websocket", "path": "/mcp", "headers": []}, receive, send
        )

    anyio.run(work)
    assert sent == [{"type": "websocket.close"}]
    [record] = caplog.records
    assert record.getMessage().startswith("Refused a WebSocket for '/mcp': No application configured for scope type")
    assert record.exc_info is None
