"""``runmcp --transport http PORT`` builds the Daphne server; ``--reload`` restarts it when the code changes."""

from __future__ import annotations

import gc
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from mcp import Client

from tests.support.harness import (
    DEADLINE,
    INITIALIZE,
    INITIALIZED,
    ROOT,
    Process,
    call,
    runmcp,
    text_of,
    wait_until,
)
from tests.support.http_client import Clients

SERVER = {"SERVER": "tests.project.mcp.server"}
WITHOUT_HTTP_SERVER = {"TEST_MCP_SERVING": json.dumps(SERVER)}


async def called(address: str, tool: str, **arguments: Any) -> str:
    with anyio.fail_after(DEADLINE):
        async with Client(address) as client:
            return str((await client.call_tool(tool, arguments)).content[0].text)  # type: ignore[union-attr]


def refusal(*arguments: str, **changes: Any) -> str:
    with override_settings(**changes), pytest.raises(CommandError) as refused:
        call_command("runmcp", *arguments)
    return str(refused.value)


def test_in_a_process_that_is_not_its_own_it_freezes_no_objects() -> None:
    frozen = gc.get_freeze_count()
    assert "--reload restarts the process" in refusal("--transport", "http", "0", "--reload", MCP_SERVING=SERVER)
    assert gc.get_freeze_count() == frozen


# An address


@pytest.mark.process
def test_a_port_alone_serves_the_asgi_application_on_the_loopback_interface() -> None:
    with runmcp("--transport", "http", "0", env=WITHOUT_HTTP_SERVER) as process:
        address = process.wait_for(r"is at (http://127\.0\.0\.1:\d+/mcp),")[1]
        assert anyio.run(lambda: called(address, "echo", text="hello")) == "hello"
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:0", r"http://127\.0\.0\.1:\d+"),
        pytest.param(
            "[::1]:0", r"http://\[::1\]:\d+", marks=pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6")
        ),
    ],
)
def test_an_address_may_be_a_host_name_or_ipv6_and_both_serves_stdio_too(given: str, url: str) -> None:
    with runmcp("--transport", "both", given, env=WITHOUT_HTTP_SERVER) as process:
        address = process.wait_for(f"is at ({url})/mcp")[1]
        assert httpx2.get(f"{address}/nothing", timeout=DEADLINE).status_code == 404
        process.send(INITIALIZE, INITIALIZED)
        assert process.receive()["id"] == "initialize"
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0


@pytest.mark.process
def test_with_debug_the_static_files_of_the_apps_are_served_as_by_runserver() -> None:
    env = {**WITHOUT_HTTP_SERVER, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_static_files"}
    with runmcp("--transport", "http", "0", env=env) as process:
        address = process.wait_for(r"is at (http://127\.0\.0\.1:\d+)/mcp")[1]
        assert httpx2.get(f"{address}/static/admin/css/base.css", timeout=DEADLINE).status_code == 200


@pytest.mark.parametrize("given", ["x", "8000:x", ":80", "::1:80", "8_000", "-1"])
def test_text_that_is_not_an_address_is_refused(given: str) -> None:
    assert refusal("--transport", "http", "--", given, MCP_SERVING=SERVER) == (
        f"{given!r} is not an address; it must be PORT, ADDRESS:PORT or [IPV6]:PORT, such as 8000 or 0.0.0.0:8000."
    )


def test_a_port_out_of_range_is_refused() -> None:
    message = refusal("--transport", "http", "70000", MCP_SERVING=SERVER)
    assert message.endswith("cannot be used: port 70000 is not in 0 to 65535.")


def test_an_address_and_an_http_server_exclude_each_other() -> None:
    configured = {**SERVER, "HTTP_SERVER": "tests.project.serving.build_daphne"}
    assert refusal("--transport", "http", "8000", MCP_SERVING=configured) == (
        "Both 8000 and MCP_SERVING['HTTP_SERVER'] say where to listen: leave one of them out."
    )
    option = ["--http-server", "tests.project.serving.build_daphne"]
    assert refusal("--transport", "http", "8000", *option, MCP_SERVING=SERVER) == (
        "Both 8000 and --http-server say where to listen: leave one of them out."
    )


def test_an_address_without_http_is_refused() -> None:
    assert refusal("8000", MCP_SERVING=SERVER) == "The address 8000 is for HTTP: give --transport http, too."


def test_an_address_without_an_asgi_application_is_refused() -> None:
    message = refusal("--transport", "http", "8000", MCP_SERVING=SERVER, ASGI_APPLICATION=None)
    assert message.startswith("ASGI_APPLICATION is not set; it must be the path of the application")


# Reloading

SOURCE = """
import anyio
from channels.routing import ProtocolTypeRouter, URLRouter

from mcp_serving import MCPServer, StreamableHTTPHandler

server = MCPServer("reloaded")


@server.tool()
async def version() -> str:
    return "VERSION"


@server.tool()
async def wait_for(path: str) -> str:
    with open(path + ".started", "w"):
        pass
    while not await anyio.Path(path).exists():
        await anyio.sleep(0.01)
    return "VERSION"


handler = StreamableHTTPHandler(server, stateless_http=True)
application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp"))})
"""


class Reloaded:
    """``runmcp --reload`` of a module that the test changes."""

    def __init__(self, process: Process, module: Path) -> None:
        self.process = process
        self._module = module
        self._starts = 0

    def write(self, source: str) -> None:
        self._module.write_text(source)

    def address(self) -> str:
        """Where it serves after its next start."""
        self._starts += 1
        found = wait_until(
            lambda: re.findall(r"is at (http://\S+/mcp)", self.process.errors)[self._starts - 1 :],
            f"start {self._starts}; standard error:\n{self.process.errors}",
        )
        return str(found[0])

    def version(self, address: str) -> str:
        return anyio.run(lambda: called(address, "version"))


@pytest.mark.process
@pytest.mark.timeout(300)
def test_reload_answers_calls_in_flight_and_restarts_in_the_same_process(tmp_path: Path) -> None:
    module, released = tmp_path / "reloaded.py", tmp_path / "released"
    module.write_text(SOURCE.replace("VERSION", "first"))
    env = {
        "TEST_MCP_SERVING": json.dumps({"SERVER": "reloaded.server"}),
        "TEST_ASGI_APPLICATION": "reloaded.application",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }

    async def in_flight(address: str) -> str:
        async with Clients(address) as clients:
            connection = await clients.connect()
            connection.send("POST", "/mcp", call(1, "wait_for", path=str(released)))
            await anyio.to_thread.run_sync(wait_until, Path(f"{released}.started").exists, "the call runs")
            reloaded.write(SOURCE.replace("VERSION", "second"))
            await anyio.to_thread.run_sync(process.wait_for, "Shutting down")
            released.touch()
            (response,) = (await connection.answer()).messages
            return text_of(response)

    with runmcp("--transport", "http", "--reload", "0", env=env) as process:
        reloaded = Reloaded(process, module)
        first = reloaded.address()
        assert anyio.run(in_flight, first) == "first"
        second = reloaded.address()
        assert reloaded.version(second) == "second"

        reloaded.write("broken = (")
        process.wait_for(
            "The old code is still served, because the new code fails: 'reloaded.server' cannot be imported: "
            rf"SyntaxError: '\(' was never closed \({module}, line 1\)\."
        )
        assert reloaded.version(second) == "second"

        reloaded.write(SOURCE.replace("VERSION", "third"))
        assert reloaded.version(reloaded.address()) == "third"
        process.signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.parametrize("transport", ["stdio", "both"])
def test_reload_over_stdio_is_refused(transport: str) -> None:
    message = refusal("--reload", "--transport", transport, "0" if transport == "both" else "--", MCP_SERVING=SERVER)
    assert message == "--reload is for --transport http: the client of stdio would lose its connection."


def test_reload_in_a_process_of_somebody_else_is_refused() -> None:
    message = refusal("--reload", "--transport", "http", "0", MCP_SERVING=SERVER)
    assert message == "--reload restarts the process: start runmcp from a command line."
