"""The names of Daphne, Twisted and Autobahn that are used although they are not public: a test fails when one moves."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from autobahn.twisted.websocket import WebSocketServerProtocol
from daphne import server as daphne_server
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server as DaphneServer
from twisted.internet import asyncioreactor, reactor
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.internet.tcp import Server as ServerConnection
from twisted.protocols.basic import LineReceiver
from twisted.web.http import HTTPChannel, Request

from mcp_serving.daphne import server as daphne
from mcp_serving.shutdown.in_flight import InFlightRequests
from mcp_serving.web_servers import daphne as recognised
from tests.support.harness import ROOT

PRIVATE_OF_TWISTED = {
    "_buffer",
    "_handlingRequest",
    "_networkProducer",
    "_parsePOSTFormSubmission",
    "_receivedHeaderCount",
    "_receivedHeaderSize",
    "_respondToBadRequestAndDisconnect",
}


# mcp_serving.daphne.Server


def a_server() -> daphne.Server:
    server = daphne.Server(None, ["tcp:port=0"])
    server.connections = {}
    server.http_factory = HTTPFactory(server)
    return server


def test_daphne_listens_with_the_factory_that_it_has_stored_in_http_factory() -> None:
    source = inspect.getsource(DaphneServer.run)
    assert "self.http_factory = HTTPFactory(self)" in source
    assert "ep.listen(self.http_factory)" in source
    assert isinstance(a_server().http_factory, daphne._Factory)


def test_a_channel_makes_requests_of_ours_with_the_limits_of_its_server() -> None:
    channel = a_server().http_factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
    assert isinstance(channel, daphne._Channel)
    assert channel.requestFactory is daphne._Request
    assert channel.timeOut == 60


@pytest.mark.parametrize("name", sorted(PRIVATE_OF_TWISTED))
def test_a_private_attribute_is_where_it_was(name: str) -> None:
    sources = "".join(inspect.getsource(each) for each in (LineReceiver, HTTPChannel, Request.requestReceived))
    assert f"self.{name}" in sources


@pytest.mark.parametrize("name", ["totalHeadersSize", "maxHeaders", "MAX_LENGTH", "timeOut", "requestFactory"])
def test_a_limit_of_twisted_is_set_by_this_attribute(name: str) -> None:
    assert hasattr(HTTPChannel, name)


def test_every_method_that_is_overridden_exists() -> None:
    for ours, theirs in (
        (daphne._Channel, HTTPChannel),
        (daphne._Request, WebRequest),
        (daphne._Factory, HTTPFactory),
    ):
        overridden = [name for name in vars(ours) if re.search("[a-z][A-Z]", name)]
        assert [name for name in overridden if not hasattr(theirs, name)] == []


def test_these_are_all_and_no_other_module_touches_them() -> None:
    for path in (ROOT / "mcp_serving").rglob("*.py"):
        touched = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        private_of_twisted = {name for name in touched if name.startswith("_") and re.search("[a-z][A-Z]", name)}
        ours = path == ROOT / "mcp_serving" / "daphne" / "server.py"
        assert private_of_twisted == (PRIVATE_OF_TWISTED - {"_buffer"} if ours else set()), path


# mcp_serving.daphne.transport


@pytest.mark.parametrize("name", ["application", "signal_handlers", "listen_success", "listen_error", "endpoints"])
def test_daphne_runs_with_an_attribute_that_is_replaced_before(name: str) -> None:
    assert hasattr(DaphneServer(None, ["tcp:port=0"]), name)
    assert f"self.{name}" in inspect.getsource(DaphneServer)


@pytest.mark.parametrize("name", ["connectionLost", "writeSomeData", "unregisterProducer", "abortConnection"])
def test_a_connection_of_twisted_has_this_method(name: str) -> None:
    assert callable(getattr(ServerConnection, name))


@pytest.mark.parametrize("name", ["getReaders", "getWriters", "addSystemEventTrigger"])
def test_the_reactor_has_this_method(name: str) -> None:
    assert callable(getattr(reactor, name))


# mcp_serving.web_servers.daphne


def test_the_loop_of_daphne_is_recognised_by_its_attribute_twisted_loop() -> None:
    assert daphne_server.twisted_loop is reactor._asyncioEventloop  # type: ignore[attr-defined]
    assert isinstance(reactor, asyncioreactor.AsyncioSelectorReactor)
    assert recognised.runs(daphne_server.twisted_loop)
    with asyncio.Runner() as runner:
        assert not recognised.runs(runner.get_loop())


def test_daphne_keeps_the_root_path_of_a_request_in_this_attribute() -> None:
    assert "self.root_path = self.server.root_path" in inspect.getsource(WebRequest.process)


def test_daphnes_send_is_a_partial_of_its_handle_reply_with_the_protocol() -> None:
    assert "send=partial(self.handle_reply, protocol)" in inspect.getsource(DaphneServer.create_application)


def test_daphne_keeps_the_application_of_a_connection_in_its_connection_table() -> None:
    for method in (DaphneServer.create_application, DaphneServer.kill_all_applications):
        assert '["application_instance"]' in inspect.getsource(method)


@pytest.mark.parametrize("name", ["producer", "registerProducer", "unregisterProducer", "finished"])
def test_a_request_of_twisted_has_this_attribute(name: str) -> None:
    assert hasattr(Request, name)


@pytest.mark.parametrize("name", ["channel", "transport"])
def test_a_request_of_twisted_sets_this_attribute(name: str) -> None:
    assert re.search(rf"self\.{name}(: \w+)? = ", inspect.getsource(Request))


@pytest.mark.parametrize("name", ["offset", "dataBuffer"])
def test_a_connection_of_twisted_shows_its_progress_in_this_attribute(name: str) -> None:
    assert hasattr(FileDescriptor, name)


@pytest.mark.parametrize("name", ["STATE_OPEN", "sendCloseFrame"])
def test_a_websocket_of_autobahn_has_this_attribute(name: str) -> None:
    assert hasattr(WebSocketServerProtocol, name)


# Releases that have moved a name


async def check() -> None:
    recognised.warn_of_missing_protections()


@pytest.mark.parametrize("name", ["totalHeadersSize", "lineLengthExceeded", "_respondToBadRequestAndDisconnect"])
def test_a_limit_whose_name_has_moved_is_one_warning(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_server()
    assert caplog.messages == []
    monkeypatch.delattr(next(each for each in HTTPChannel.__mro__ if name in vars(each)), name)
    daphne.Server(None, ["tcp:port=0"])
    [message] = caplog.messages
    assert f"limits of mcp_serving.daphne.Server do not hold: {name} has moved" in message


@pytest.fixture
def back_pressure() -> Iterator[type[recognised.BackPressure]]:
    yield recognised.BackPressure
    recognised.BackPressure.is_possible = True


def test_the_supported_releases_cost_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    daphne_server.twisted_loop.run_until_complete(check())
    assert caplog.messages == []
    assert recognised.BackPressure.is_possible


@pytest.mark.parametrize(
    ("owner", "name", "protection"),
    [
        (FileDescriptor, "offset", "a client that does not read its response can fill the memory"),
        (Request, "registerProducer", "a client that does not read its response can fill the memory"),
        (WebSocketServerProtocol, "sendCloseFrame", "WebSockets are closed without the code 1001"),
    ],
)
def test_a_name_that_has_moved_is_one_warning_which_names_the_missing_protection(
    owner: type,
    name: str,
    protection: str,
    back_pressure: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = next(each for each in owner.__mro__ if name in vars(each))
    monkeypatch.delattr(owner, name)
    daphne_server.twisted_loop.run_until_complete(check())
    [message] = caplog.messages
    assert protection in message
    assert back_pressure.is_possible is ("memory" not in protection)


def test_a_send_that_is_not_recognised_is_one_warning_and_no_back_pressure(
    back_pressure: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        daphne_server, "partial", lambda function, protocol: lambda message: function(protocol, message)
    )
    daphne_server.twisted_loop.run_until_complete(check())
    [message] = caplog.messages
    assert "can fill the memory" in message
    assert "can look complete" in message
    in_flight = InFlightRequests().open("GET '/'")
    assert back_pressure.of(lambda message: None, in_flight) is None
