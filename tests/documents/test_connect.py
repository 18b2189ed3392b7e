"""docs/connect.md: its configurations and its client, against the tutorial's project."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from mcp_serving.inspection.client_configurations import CLIENTS
from tests.support.documents import DOCS, blocks, environment_of_a_project, manage, project, write_files
from tests.support.harness import DEADLINE, running

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PAGE = DOCS / "connect.md"
SLOW_TOOL = '''

@server.tool()
def slow() -> str:
    """Takes longer than the default timeout of httpx2."""
    import time

    time.sleep(6)
    return "done"
'''
TASK = "Task.objects.create(title='Feed the cat'); User.objects.create_user('ann')"


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("connect") / "mysite")
    write_files(folder, "connect.md")
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", TASK)
    with (folder / "mysite" / "mcp.py").open("a") as server:
        server.write(SLOW_TOOL)
    serving = folder / "mysite" / "serving.py"
    assert "port=8000" in serving.read_text()
    serving.write_text(serving.read_text().replace("port=8000", "port=0"))  # 8000 may be in use on this machine
    return folder


def entries() -> Iterator[dict[str, Any]]:
    """Each server of each JSON configuration on the page."""
    for language, code in blocks(PAGE):
        if language == "json":
            (servers,) = json.loads(code).values()
            yield from servers.values()


COMMANDS = [entry for entry in entries() if "command" in entry]
ADDRESSES = [entry for entry in entries() if "url" in entry]


def test_the_page_names_each_client_that_the_command_knows() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: label for name, label, _ in listed} == {client.key: client.label for client in CLIENTS.values()}
    for name, _, file in listed:
        assert CLIENTS[name].path().name in file


def test_the_page_configures_three_clients_over_stdio_and_two_over_http() -> None:
    assert (len(COMMANDS), len(ADDRESSES)) == (3, 2)


@pytest.mark.process
@pytest.mark.parametrize("entry", COMMANDS, ids=str)
def test_the_command_in_a_clients_configuration_serves_the_project(entry: dict[str, Any], mysite: Path) -> None:
    assert entry["command"].endswith("/.venv/bin/python")
    arguments = [part.replace("/path/to/mysite", str(mysite)) for part in entry["args"]]
    # A client may start it in any folder.
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=environment_of_a_project(), cwd="/")

    async def work() -> None:
        with anyio.fail_after(DEADLINE):
            async with Client(parameters) as client:
                await has_the_tools(client)

    anyio.run(work)


@pytest.mark.process
def test_the_addresses_headers_and_the_client_on_the_page_reach_a_server_over_http(mysite: Path) -> None:
    token = manage(mysite, "manage.py", "mcptoken", "create", "ann").strip()
    command = [sys.executable, "manage.py", "runmcp", "--transport", "http"]
    with running(command, env=environment_of_a_project(), cwd=mysite) as process:
        address = process.wait_for(r"is at (http://127.0.0.1:\d+)/mcp")[1]
        for entry in ADDRESSES:
            url = entry["url"].replace("http://127.0.0.1:8000", address)
            headers = {name: value.replace("mcp_...", token) for name, value in entry["headers"].items()}
            anyio.run(over_http, url, headers)

        def run(script: str, *arguments: str) -> str:
            code = (mysite / script).read_text().replace("http://127.0.0.1:8000", address)
            return manage(mysite, "-c", code, *arguments, TOKEN=token)

        printed = run("call.py")
        assert printed.startswith("2026-07-28\n")
        assert "1: Feed the cat" in printed
        assert run("try_http.py", "slow", "{}") == "done\n"


async def over_http(url: str, headers: dict[str, str]) -> None:
    with anyio.fail_after(DEADLINE):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            await has_the_tools(client)


async def has_the_tools(client: Client) -> None:
    result = await client.call_tool("open_tasks", {})
    assert result.structured_content == {"result": ["1: Feed the cat"]}
    result = await client.call_tool("protocol_version", {})
    assert result.structured_content == {"result": "2026-07-28"}
