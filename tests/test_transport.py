from __future__ import annotations

import argparse
import math

import pytest
from mcp.server.mcpserver import MCPServer

from mcp_serving import InvalidServer, InvalidShutdownTimeout, InvalidTransport, NoHTTPServer, Server, Transport


@pytest.mark.parametrize("text", ["http", "HTTP", " Http\n"])
def test_a_transport_is_read_in_any_case_and_with_blanks_around_it(text: str) -> None:
    assert Transport(text) is Transport.HTTP


@pytest.mark.parametrize("value", ["websocket", "", "stdio,http", None, 3])
def test_any_other_value_is_an_error_that_names_it_and_the_three(value: object) -> None:
    with pytest.raises(InvalidTransport, match=f"{value!r} is not a transport; allowed are: stdio, http, both"):
        Transport(value)


def test_argparse_and_json_use_a_transport_as_it_is() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", type=Transport)
    assert parser.parse_args(["--transport", "Both"]).transport is Transport.BOTH
    assert f"{Transport.BOTH}" == "both"


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, "soon", None, True, []])
def test_a_shutdown_timeout_that_is_no_number_of_seconds_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidShutdownTimeout, match="finite and not negative"):
        Server(MCPServer("x"), shutdown_timeout=seconds)  # type: ignore[arg-type]


def test_a_shutdown_timeout_may_come_as_text() -> None:
    assert Server(MCPServer("x"), shutdown_timeout="2.5").shutdown_timeout == 2.5  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["http", "both"])
def test_http_needs_an_http_server(transport: str) -> None:
    with pytest.raises(NoHTTPServer, match=f"{transport!r} needs a Daphne server"):
        Server(MCPServer("x"), transport=transport)


def test_what_is_no_server_of_the_sdk_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidServer, match=r"official SDK \(mcp 2.x\), not builtins.dict"):
        Server({})  # type: ignore[arg-type]


def test_the_sdks_server_stays_reachable_underneath() -> None:
    mcp = MCPServer("x")
    assert Server(mcp).mcp is mcp
