"""What mcp_serving.daphne relies on beyond what Daphne and Twisted declare public: each test fails when it is moved."""

from __future__ import annotations

import ast
import inspect
import re

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server as DaphneServer
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.protocols.basic import LineReceiver
from twisted.web.http import HTTPChannel, Request

from mcp_serving.daphne import server as daphne
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


def test_the_private_attributes_are_where_they_were() -> None:
    sources = "".join(inspect.getsource(each) for each in (LineReceiver, HTTPChannel, Request.requestReceived))
    for name in PRIVATE_OF_TWISTED:
        assert f"self.{name}" in sources, name
    assert {"totalHeadersSize", "maxHeaders", "MAX_LENGTH"} <= set(dir(HTTPChannel))
    assert {"offset", "dataBuffer"} <= set(dir(FileDescriptor))


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
        ours = path == ROOT / "mcp_serving" / "daphne.py"
        assert private_of_twisted == (PRIVATE_OF_TWISTED - {"_buffer"} if ours else set()), path
