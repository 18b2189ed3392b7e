"""What an endpoint may be, and what is said, before anything starts, about one that cannot be served."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

import anyio
import httpx2
import pytest
import trustme
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.harness import Notes, runmcp, tcp

HTTP = ("--transport", "http")


@pytest.mark.process
def test_a_tls_endpoint_serves_the_sdks_client_over_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    endpoint = f"ssl:port=0:interface=127.0.0.1:privateKey={key}:certKey={chain}"
    with runmcp(*HTTP, env={"TEST_ENDPOINTS": json.dumps([endpoint])}) as process:
        address = process.wait_for(r"is at (https://127\.0\.0\.1:\d+)/mcp")[1]

        async def talk(mode: str) -> None:
            async with (
                httpx2.AsyncClient(verify=trusting) as http_client,
                Client(streamable_http_client(f"{address}/mcp", http_client=http_client), mode=mode) as client,
            ):
                assert (await client.call_tool("state", {})).content[0].text == "shared"  # type: ignore[union-attr]

        anyio.run(talk, "auto")
        anyio.run(talk, "legacy")


def assert_ends_in_one_line(errors: str, *expected: str) -> None:
    """After what loggers had to say, the error is the last line, and the only one that the command writes."""
    lines = [line for line in errors.splitlines() if line]
    assert [line.startswith("CommandError: ") for line in lines].count(True) == 1
    assert lines[-1].startswith("CommandError: ")
    assert "Traceback" not in errors
    for text in expected:
        assert text in lines[-1]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp:port=70000:interface=127.0.0.1", "port 70000 is not in 0 to 65535"),
        ("tcp:70000", "port 70000 is not in 0 to 65535"),
        ("tcp:port=-1", "port -1 is not in 0 to 65535"),
        ("tcp:port=http", "invalid literal"),
        ("tcp", "cannot be used"),
        ("tcp:port=8000:interfaces=127.0.0.1", "interfaces"),
        ("", "cannot be used"),
        ("carrier-pigeon:port=8000", "carrier-pigeon"),
        ("systemd:domain=INET:index=0", "systemd has handed over no such socket"),
        ("systemd:domain=INET:name=mysite.socket", "systemd has handed over no such socket"),
        ("ssl:port=0:privateKey=/nowhere/key.pem:certKey=/nowhere/cert.pem", "/nowhere/"),
        ("ssl:port=0:privateKey=pyproject.toml:certKey=pyproject.toml", "cannot be used"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named_with_the_cause(endpoint: str, expected: str) -> None:
    from mcp_serving import InvalidEndpoint
    from mcp_serving.daphne.transport import _check_endpoint

    with pytest.raises(InvalidEndpoint) as raised:
        _check_endpoint(endpoint)
    assert repr(endpoint) in str(raised.value)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["tcp:8000", "tcp6:port=0", "unix:/run/app.sock"])
def test_an_endpoint_that_can_be_used_is_not_refused(endpoint: str) -> None:
    from mcp_serving.daphne.transport import _check_endpoint

    _check_endpoint(endpoint)


@pytest.mark.process
def test_one_bad_endpoint_keeps_the_good_ones_from_listening(notes: Notes) -> None:
    endpoints = json.dumps(["tcp:port=0:interface=127.0.0.1", "tcp:port=70000"])
    with runmcp(*HTTP, env={**notes.env, "TEST_ENDPOINTS": endpoints}) as process:
        assert process.wait() == 1
        assert_ends_in_one_line(process.errors, "'tcp:port=70000'", "not in 0 to 65535")
    assert notes.all() == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        ("without_application", "The Daphne server's application is None"),
        ("without_endpoints", "The Daphne server has no endpoint"),
        ("nothing", "http_server must be a daphne.server.Server or a callable returning one, not builtins.NoneType"),
        ("raises", "KeyError: 'DAPHNE_PORT'"),
        ("not_callable", "not builtins.str"),
    ],
)
def test_a_builder_of_no_usable_server_is_told_in_one_line(builder: str, expected: str, notes: Notes) -> None:
    env = {**notes.env, "TEST_ENDPOINTS": tcp(0)}
    with runmcp(*HTTP, "--http-server", f"tests.project.daphnes.{builder}", env=env) as process:
        assert process.wait() == 1
        assert_ends_in_one_line(process.errors, expected)
    assert notes.all() == []


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "both"])
def test_a_port_in_use_ends_everything(transport: str, notes: Notes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoints = json.dumps(["tcp:port=0:interface=127.0.0.1", f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1"])
        command = ("--transport", transport, "--http-server", "tests.project.daphnes.build")
        with runmcp(*command, env={**notes.env, "TEST_ENDPOINTS": endpoints}) as process:  # with stdin left open
            assert process.wait() == 1
            assert_ends_in_one_line(process.errors, "in use", "Stop what listens there, or change the endpoint.")
            assert process.output() == b""
    noted = notes.all()
    assert noted.count("lifespan entered") == noted.count("lifespan left") == 1
    assert "own listen_error" in noted


@pytest.mark.process
def test_a_socket_that_may_not_be_bound_ends_everything(tmp_path: Path, notes: Notes) -> None:
    endpoints = json.dumps([f"unix:{tmp_path / 'missing' / 'socket'}"])
    with runmcp(*HTTP, env={**notes.env, "TEST_ENDPOINTS": endpoints}) as process:
        assert process.wait() == 1
        assert_ends_in_one_line(process.errors, "cannot listen", "missing/socket")
    assert notes.all() == ["lifespan entered", "lifespan left"]
