"""Over stdio: clients are served, whatever standard input and output are, and the wire carries only JSON-RPC."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, TextContent, TextResourceContents

from tests.support.harness import (
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    ROOT,
    Notes,
    call,
    environment,
    parameters,
    runmcp,
    text_of,
)
from tests.support.terminal import at_a_terminal

pytestmark = pytest.mark.process

CONVERSATION = [INITIALIZE, INITIALIZED, call(1, "immediate", text="answered")]


def lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def by_id(output: bytes) -> dict[Any, dict[str, Any]]:
    """The answers on a wire that must carry nothing but JSON-RPC."""
    messages = [json.loads(line) for line in output.splitlines()]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    return {message["id"]: message for message in messages if "id" in message}


def text(result: Any) -> str:
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_uses_tools_resources_and_prompts(mode: str, notes: Notes) -> None:
    async def talk() -> None:
        progress: list[tuple[float, str | None]] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            progress.append((done, message))

        async with Client(parameters(**notes.env), mode=mode) as client:
            assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
            assert {"echo", "state"} <= {tool.name for tool in (await client.list_tools()).tools}
            assert text(await client.call_tool("echo", {"text": "hello"})) == "hello"
            assert text(await client.call_tool("state", {})) == "shared"
            (contents,) = (await client.read_resource("test://static")).contents
            assert isinstance(contents, TextResourceContents)
            assert contents.text == "static text"
            prompt = await client.get_prompt("hello", {"name": "Ada"})
            assert prompt.messages[0].content == TextContent(text="Say hello to Ada.")
            await client.call_tool("count", {"to": 50}, progress_callback=on_progress)
        assert progress == [(step, f"step {step}") for step in range(1, 51)]

    anyio.run(talk)
    assert notes.all() == ["lifespan entered", "lifespan left"]


def test_a_tool_asks_the_user_during_its_call() -> None:
    async def answer(_: ClientRequestContext, asked: ElicitRequestParams) -> ElicitResult:
        assert asked.message == "Which word?"
        return ElicitResult(action="accept", content={"word": "yes"})

    async def talk() -> None:
        async with Client(parameters(), mode="legacy", elicitation_callback=answer) as client:
            assert text(await client.call_tool("ask", {})) == "yes"

    anyio.run(talk)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_call_stops_its_tool(mode: str, notes: Notes) -> None:
    async def talk() -> None:
        async with Client(parameters(**notes.env), mode=mode) as client, anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "slow", {"seconds": 60})
            await anyio.to_thread.run_sync(notes.wait_for, "slow started")
            calls.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(notes.wait_for, "slow finally")
                assert text(await client.call_tool("immediate", {"text": "still served"})) == "still served"

    anyio.run(talk)
    assert notes.all() == ["lifespan entered", "slow started", "slow cancelled", "slow finally", "lifespan left"]


def test_piped_requests_are_answered_before_the_process_exits(notes: Notes) -> None:
    last = json.dumps(call(2, "echo", text="without a newline")).encode()
    piped = lines(INITIALIZE, INITIALIZED, call(1, "slow", seconds=1)) + last
    done = subprocess.run([*MANAGE, "runmcp"], input=piped, env=environment(**notes.env), cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    answers = by_id(done.stdout)
    assert text_of(answers[1]) == "slow finished"
    assert text_of(answers[2]) == "without a newline"
    assert notes.all() == ["lifespan entered", "slow started", "slow finally", "slow finished", "lifespan left"]


@pytest.mark.parametrize(
    "buffering", [{"PYTHONUNBUFFERED": ""}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"]
)
def test_nothing_that_a_tool_writes_to_standard_output_reaches_the_client(buffering: dict[str, str]) -> None:
    with runmcp(env=buffering) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "shout"), call(2, "immediate", text="after it"))
        process.popen.stdin.close()  # type: ignore[union-attr]
        assert process.wait() == 0
        answers = by_id(process.output())
    assert set(answers) == {"initialize", 1, 2}
    assert text_of(answers[1]) == "the child read 0 bytes"
    for printed in [
        "printed by the tool",
        "printed by the tool, flushed",
        "written without a flush",
        "written to descriptor 1",
        "logged to stdout",
        "written by a child process",
    ]:
        assert printed in process.errors


def test_text_printed_at_import_and_at_exit_does_not_reach_the_client() -> None:
    with runmcp("--server", "tests.project.talkative.server") as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "echo", text="quiet"))
        process.popen.stdin.close()  # type: ignore[union-attr]
        assert process.wait() == 0
        assert set(by_id(process.output())) == {"initialize", 1}
    assert "without a flush" in process.errors
    assert "it has loaded" in process.errors


# What standard input and output may be


def test_regular_files_can_be_standard_input_and_output(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(lines(*CONVERSATION))
    with (
        open(tmp_path / "in", "rb") as stdin,
        open(tmp_path / "out", "wb") as stdout,
        runmcp(stdin=stdin, stdout=stdout) as process,
    ):
        assert process.wait() == 0
    assert text_of(by_id((tmp_path / "out").read_bytes())[1]) == "answered"


@pytest.mark.parametrize(
    ("shared", "blocking"), [(True, True), (False, False)], ids=["one for both", "non-blocking, one each way"]
)
def test_sockets_can_be_standard_input_and_output(shared: bool, blocking: bool) -> None:
    to_server, stdin = socket.socketpair()
    from_server, stdout = (to_server.dup(), stdin.dup()) if shared else socket.socketpair()
    with to_server, from_server, stdin, stdout, from_server.makefile("rb") as answers:
        stdin.setblocking(blocking)
        stdout.setblocking(blocking)
        with runmcp(stdin=stdin.fileno(), stdout=stdout.fileno()) as process:
            stdin.close()
            stdout.close()
            to_server.sendall(lines(*CONVERSATION[:2], call(1, "big_at_once", length=4_000_000)))
            answers.readline()
            assert len(text_of(json.loads(answers.readline()))) == 4_000_000
            to_server.shutdown(socket.SHUT_WR)
            assert process.wait() == 0


def test_at_a_terminal_a_line_says_that_a_client_is_expected() -> None:
    with at_a_terminal() as (process, terminal):
        process.wait_for("This is a terminal: an MCP client is expected there")
        terminal.type(lines(CONVERSATION[0]))
        echoed, answer = terminal.read_line(), terminal.read_line()
        assert b'"initialize"' in echoed
        assert json.loads(answer)["result"]["serverInfo"]["name"] == "test-server"
        terminal.type(b"\x04")  # Ctrl-D: the end of the input
        assert process.wait() == 0


def test_dev_null_as_standard_input_ends_the_process_at_once_with_the_reason() -> None:
    with runmcp(stdin=subprocess.DEVNULL) as process:
        assert process.wait() == 0
    assert "standard input is /dev/null" in process.errors


def redirected(redirection: str, notes: Notes, *messages: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    command = f"exec {shlex.join([*MANAGE, 'runmcp'])} {redirection}"
    return subprocess.run(
        ["sh", "-c", command],
        input=lines(*messages),
        env=environment(**notes.env),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )


def test_with_dev_null_as_standard_output_it_serves_to_the_end_of_its_input(notes: Notes) -> None:
    done = redirected(">/dev/null", notes, INITIALIZE, INITIALIZED, call(1, "slow", seconds=0))
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"jsonrpc" not in done.stderr
    assert notes.all()[-2:] == ["slow finished", "lifespan left"]
