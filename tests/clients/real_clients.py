"""Clients of others against one server of ours: ``make clients``.

Each client is a script that is given JSON, with ``url`` or ``command``, ``mode`` and ``label``, and does the same:
lists tools, calls one with a structured result, one that reports progress, two that ask first (it says yes about
order 7, no about order 8), reads a resource, gets a prompt, cancels a call. Then it prints "cut me" in the middle of
a call, which has its connection cut, calls once more, and prints what it saw, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.proxy import Proxy
from tests.npm import node, script
from tests.support.asgi_servers import serving
from tests.support.harness import ROOT, Notes, environment, running

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
LEGACY, MODERN = "2025-11-25", "2026-07-28"

PYTHON_SDK = [sys.executable, str(HERE / "python_sdk.py")]
FASTMCP = [str(ROOT / ".venv/fastmcp/bin/python"), str(HERE / "fastmcp_client.py")]
TYPESCRIPT = [node(), str(HERE / "typescript.mjs")]

CLIENTS = {
    "python-auto": (PYTHON_SDK, "auto", MODERN),
    "python-legacy": (PYTHON_SDK, "legacy", LEGACY),
    "fastmcp-auto": (FASTMCP, "auto", MODERN),
    "fastmcp-legacy": (FASTMCP, "legacy", LEGACY),
    "typescript-v1": (TYPESCRIPT, "v1", LEGACY),
    "typescript-v2-auto": (TYPESCRIPT, "auto", MODERN),
    "typescript-v2-legacy": (TYPESCRIPT, "legacy", LEGACY),
}
TOOLS = ["add", "count", "delete_order", "outlast", "wait"]
DECLINED = "The user said no to delete_order: nothing was done. Do not call it again unless the user asks for it."


@dataclass(frozen=True)
class Served:
    """The server over HTTP, and what it and those over stdio have noted."""

    notes: Notes
    env: dict[str, str]
    port: int

    @property
    def command(self) -> dict[str, Any]:
        """For a client that starts the server over stdio."""
        return {"command": sys.executable, "args": [str(ROOT / "manage.py"), "runmcp"], "env": self.env}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    notes = Notes(tmp_path_factory.mktemp("clients") / "notes")
    changes = {"DJANGO_SETTINGS_MODULE": "tests.clients.settings", **notes.env}
    with serving("runmcp", "tests.clients.asgi", env=changes) as (process, address):
        yield Served(notes, environment(**changes), int(address.rpartition(":")[2]))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert "Traceback" not in process.errors


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_a_client_sees_all_that_the_server_does(served: Served, transport: str, name: str) -> None:
    command, mode, protocol = CLIENTS[name]
    label = f"{name} over {transport}"
    with Proxy(served.port) as proxy:
        where = {"url": f"http://127.0.0.1:{proxy.port}/mcp"} if transport == "http" else {"command": served.command}
        spec = json.dumps({**where, "mode": mode, "label": label})
        with running([*command, spec], env=environment()) as client:
            assert client.receive() == "cut me"
            if transport == "http":
                proxy.cut()
            saw = client.receive()
            assert client.wait() == 0, client.errors

    # At 2026-07-28 a stream that has ended has cancelled its call; before, the rest of it is fetched by resuming.
    cancelled_by_the_cut = transport == "http" and protocol == MODERN
    assert saw == {
        "protocol": protocol,
        "tools": TOOLS,
        "add": {"total": 5},
        "count": "counted to 3",
        "progress": [1, 2, 3],
        "questions": ["Delete order 7?", "Delete order 8?"],
        "accepted": [False, "Order 7 is deleted."],
        "declined": [True, DECLINED],
        "resource": "Hello from a resource.",
        "prompt": "Say hello to Ada.",
        "cancelled": True,
        "outlast": "failed" if cancelled_by_the_cut else "outlasted",
        "after": {"total": 2},
    }
    served.notes.wait_for(f"{label}: wait cancelled")
    if cancelled_by_the_cut:
        served.notes.wait_for(f"{label}: outlast cancelled")
    noted = served.notes.all()
    assert (f"{label}: outlast cancelled" in noted) == cancelled_by_the_cut
    assert [note for note in noted if note.startswith(f"{label}: order")] == [f"{label}: order 7 deleted"]


# The Inspector's CLI: a process for each call


def inspector(
    served: Served, transport: str, era: str, home: Path, *arguments: str
) -> tuple[list[str], dict[str, str]]:
    if transport == "http":
        target = [f"http://127.0.0.1:{served.port}/mcp"]
    else:
        stdio = served.command
        variables = [f"{name}={stdio['env'][name]}" for name in ("DJANGO_SETTINGS_MODULE", "PYTHONPATH", "TEST_NOTES")]
        target = [stdio["command"], *stdio["args"], *(part for each in variables for part in ("-e", each))]
    command = [*script(INSPECTOR), "--cli", *target, "--protocol-era", era, "--format", "json", "-q", *arguments]
    return command, environment(HOME=str(home))  # it keeps a catalog of servers there


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_inspectors_cli_lists_calls_reads_and_prompts(
    served: Served, transport: str, era: str, tmp_path: Path
) -> None:
    def inspect(method: str, *arguments: str) -> dict[str, Any]:
        command, env = inspector(served, transport, era, tmp_path, "--method", method, *arguments)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)["result"]
        return result

    def call(name: str, **arguments: Any) -> dict[str, Any]:
        return inspect("tools/call", "--tool-name", name, "--tool-args-json", json.dumps(arguments))

    assert sorted(tool["name"] for tool in inspect("tools/list")["tools"]) == TOOLS
    assert call("add", a=2, b=3)["structuredContent"] == {"total": 5}
    assert call("count", to=3)["content"][0]["text"] == "counted to 3"
    [contents] = inspect("resources/read", "--uri", "test://greeting")["contents"]
    assert contents["text"] == "Hello from a resource."
    [message] = inspect("prompts/get", "--prompt-name", "greet", "--prompt-args", "name=Ada")["messages"]
    assert message["content"]["text"] == "Say hello to Ada."

    label = f"inspector, {era}, over {transport}"
    refused = call("delete_order", label=label, number=7)
    assert refused["isError"]
    assert "this client cannot ask" in refused["content"][0]["text"]
    assert not [note for note in served.notes.all() if note.startswith(label)]


def test_a_call_of_an_inspector_that_is_ended_is_cancelled(served: Served, tmp_path: Path) -> None:
    arguments = ["--method", "tools/call", "--tool-name", "wait", "--tool-args-json", '{"label": "inspector"}']
    command, env = inspector(served, "http", "modern", tmp_path, *arguments)
    with running(command, env=env) as client:
        served.notes.wait_for("inspector: wait started")
        client.signal(signal.SIGTERM)
        served.notes.wait_for("inspector: wait cancelled")
