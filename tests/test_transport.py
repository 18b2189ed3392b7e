from __future__ import annotations

import argparse
import math

import pytest
from mcp.server.mcpserver import MCPServer

from mcp_serving import InvalidServer, InvalidShutdownTimeout, InvalidTransport, NoHTTPServer, Server, Transport


@pytest.mark.parametrize("text", ["http", "HTTP", " Http\n"])
def test_a_transport_may_have_any_case_and_surrounding_blanks(text: str) -> None:
    assert Transport(text) is Transport.HTTP


@pytest.mark.parametrize("value", ["websocket", "", "stdio,http", None, 3])
def test_another_value_is_an_error_that_names_it_and_the_three_transports(value: object) -> None:
    with pytest.raises(InvalidTransport, match=f"{value!r} is not a transport; allowed are: stdio, http, both"):
        Transport(value)


def test_transport_is_a_type_for_argparse() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", type=Transport)
    assert parser.parse_args(["--transport", "Both"]).transport is Transport.BOTH
    assert f"{Transport.BOTH}" == "both"


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, "soon", None, True, []])
def test_an_invalid_shutdown_timeout_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidShutdownTimeout, match="finite and not negative"):
        Server(MCPServer("x"), shutdown_timeout=seconds)  # type: ignore[arg-type]


def test_a_shutdown_timeout_may_be_text() -> None:
    assert Server(MCPServer("x"), shutdown_timeout="2.5").shutdown_timeout == 2.5  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["http", "both"])
def test_http_needs_an_http_server(transport: str) -> None:
    with pytest.raises(NoHTTPServer, match=f"{transport!r} needs a Daphne server"):
        Server(MCPServer("x"), transport=transport)


def test_an_object_that_is_not_a_server_is_refused_with_its_type() -> None:
    with pytest.raises(InvalidServer, match=r"official SDK \(mcp 2.x\), not builtins.dict"):
        Server({})  # type: ignore[arg-type]


def test_the_sdks_server_stays_reachable() -> None:
    mcp = MCPServer("x")
    assert Server(mcp).mcp is mcp
