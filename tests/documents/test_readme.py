"""What the README says, run as it says it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitRequestParams, ElicitResult

from tests.support.harness import DEADLINE, ROOT, running

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new Django project with the README's five steps done to it."""
    folder = tmp_path_factory.mktemp("readme") / "mysite"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "django", "startproject", "mysite", str(folder)], check=True, env=env())
    for name, code in python_files():
        path = folder / name
        if name == "mysite/settings.py":
            # Read as an edit: the apps come on top of those that are there, other settings at the end.
            code = re.sub(
                r"INSTALLED_APPS = \[(.*?)    # \.\.\..*?\]", r"INSTALLED_APPS[:0] = [\1]", code, flags=re.DOTALL
            )
            path.write_text(path.read_text() + code)
        else:
            path.write_text(code)
    (write_tool,) = [code for _, code in BLOCKS if "def delete_account" in code]
    with (folder / "mysite" / "mcp.py").open("a") as server:
        server.write(write_tool)
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "--verbosity", "0"], cwd=folder, check=True, env=env())
    subprocess.run([*manage, "check"], cwd=folder, check=True, env=env())
    return folder


def python_files() -> Iterator[tuple[str, str]]:
    for language, code in BLOCKS:
        if language == "python" and (name := re.match(r"# (mysite/\w+\.py)\n", code)):
            yield name[1], code


def env() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return {**clean, "PYTHONPATH": str(ROOT)}


def servers() -> list[tuple[str, dict[str, object]]]:
    """Each server of each JSON configuration."""
    found = []
    for language, code in BLOCKS:
        if language == "json":
            configuration = json.loads(code)
            (entries,) = configuration.values()
            found += list(entries.items())
    return found


async def count_users(server: StdioServerParameters | str) -> None:
    with anyio.fail_after(DEADLINE):
        async with Client(server) as client:
            result = await client.call_tool("count_users", {})
            assert result.structured_content == {"result": 0}


def test_the_readme_configures_three_clients_over_stdio_and_two_over_http() -> None:
    kinds = ["url" if "url" in entry else "command" for _, entry in servers()]
    assert sorted(kinds) == ["command", "command", "command", "url", "url"]


@pytest.mark.parametrize("entry", [entry for _, entry in servers() if "command" in entry], ids=str)
def test_the_command_in_a_clients_configuration_serves_the_project(entry: dict[str, object], mysite: Path) -> None:
    arguments = [str(part).replace("/path/to/mysite", str(mysite)) for part in entry["args"]]  # type: ignore[attr-defined]
    # Started from anywhere, as a client does.
    anyio.run(count_users, StdioServerParameters(command=sys.executable, args=arguments, env=env(), cwd="/"))


def test_runmcp_over_both_serves_what_the_configurations_name(mysite: Path) -> None:
    urls = {str(entry["url"]) for _, entry in servers() if "url" in entry}
    assert urls == {"http://127.0.0.1:8000/mcp"}
    serving = mysite / "mysite" / "serving.py"
    assert "port=8000" in serving.read_text()
    serving.write_text(serving.read_text().replace("port=8000", "port=0"))  # it may be taken on this machine
    command = [sys.executable, "manage.py", "runmcp", "--transport", "both"]
    with running(command, env=env(), cwd=mysite) as process:
        address = process.wait_for(r"is at (http://127.0.0.1:\d+/mcp)")[1]
        anyio.run(count_users, address)
        (script,) = [code for _, code in BLOCKS if code.startswith("# try_it.py")]
        script = script.replace("http://127.0.0.1:8000/mcp", address)
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE).stdout
        assert "structured_content={'result': 0}" in said
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0


def test_the_write_tool_asks_its_question_and_runs_for_the_user_with_the_permission(mysite: Path) -> None:
    in_shell(mysite, "User.objects.create_user('ann'); User.objects.create_superuser('boss')")
    questions: list[str] = []

    async def accept(_: Any, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={})

    async def delete_ann(*user: str) -> str:
        server = StdioServerParameters(
            command=sys.executable, args=["manage.py", "runmcp", *user], env=env(), cwd=mysite
        )
        with anyio.fail_after(DEADLINE):
            async with Client(server, elicitation_callback=accept) as client:
                result = await client.call_tool("delete_account", {"name": "ann"})
                return str(result.content[0].text)  # type: ignore[union-attr]

    assert anyio.run(delete_ann) == "Unknown tool: delete_account"
    assert anyio.run(delete_ann, "--user", "boss") == "boss has deleted ann."
    assert questions == ["Delete the account of ann?"]
    in_shell(mysite, "User.objects.all().delete()")


def in_shell(mysite: Path, code: str) -> None:
    script = f"from django.contrib.auth.models import User; {code}"
    command = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", script]
    subprocess.run(command, cwd=mysite, env=env(), check=True)


def test_the_piped_lines_print_two_answers(mysite: Path) -> None:
    (command,) = [code for language, code in BLOCKS if language == "console" and "printf" in code]
    line = command.removeprefix("$ ").replace("python manage.py", f"{sys.executable} manage.py")
    done = subprocess.run(["sh", "-c", line], cwd=mysite, env=env(), capture_output=True, check=True, timeout=DEADLINE)
    answers = [json.loads(answer) for answer in done.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["tools"][0]["name"] == "count_users"
