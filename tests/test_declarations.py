"""Mistakes in the declarations of tools, resources and prompts are named in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.http import HttpRequest
from django.test import override_settings
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import InvalidSignature

from mcp_serving import MCPServer, Registry
from tests.support import in_django
from tests.support.harness import ROOT, manage, runmcp

SERVER = "tests.project.mistakes.server"
UNKNOWN_PERMISSION = (
    "The tool 'hidden' needs the permission 'auth.veiw_user', which is not in the database: only superusers can use it."
)


# A parameter without a JSON schema


@pytest.mark.process
@pytest.mark.parametrize("command", ["runmcp", "mcp list", "check --deploy"])
def test_a_parameter_without_a_json_schema_is_one_line_with_the_tool_the_parameter_and_the_file(command: str) -> None:
    done = manage(*command.split(), TEST_MCP_SERVING='{"SERVER": "tests.project.no_schema.server"}')
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "no_schema" in line]
    assert len(lines) == 1
    assert lines[0].endswith(
        "InvalidSignature: Tool 'show' has the parameter 'request: django.http.request.HttpRequest', whose type has no "
        f"JSON schema ({ROOT}/tests/project/no_schema.py, line 10). Use a type that JSON has, such as int for a "
        "primary key."
    )
    assert "Traceback" not in done.stderr


async def with_context(ctx: Context[Any, Any], number: int, requests: list[HttpRequest] | None = None) -> str:
    return "never called"


class Callable:
    def __call__(self, number: int, requests: list[HttpRequest]) -> str:
        return "never called"


@pytest.mark.parametrize("function", [with_context, Callable()])
@pytest.mark.parametrize("kind", ["Tool", "Write tool", "Prompt", "Resource", "Registry"])
def test_the_parameter_is_named_for_each_kind_of_declaration(kind: str, function: Any) -> None:
    server: MCPServer[Any] = MCPServer("declaring")
    registry = Registry()
    registry.tool("a")(function)
    declare = {
        "Tool": lambda: server.tool("a")(function),
        "Write tool": lambda: server.write_tool("a", confirm="?")(function),
        "Prompt": lambda: server.prompt("a")(function),
        "Resource": lambda: server.resource("a://{number}/{requests}", name="a")(function),
        "Registry": lambda: server.include(registry),
    }[kind]
    with pytest.raises(InvalidSignature, match=r"'requests: list\[django.http.request.HttpRequest\].*no JSON schema"):
        declare()
    server.tool("a")(len)  # and the name is still free


# Names and permissions


def check(*, databases: list[str] | None = None) -> list[CheckMessage]:
    with override_settings(MCP_SERVING={"SERVER": SERVER}, ASGI_APPLICATION=None):
        return list(run_checks(tags=["mcp_serving"], include_deployment_checks=True, databases=databases))


def messages(found: list[CheckMessage], number: str) -> list[str]:
    return [f"{message.msg} {message.hint}" for message in found if message.id == f"mcp_serving.{number}"]


def test_a_tool_with_a_name_of_more_than_64_characters_is_a_warning_of_the_checks() -> None:
    from tests.project import mistakes

    [warning] = messages(check(), "W007")
    assert warning.startswith(f"The name of the tool {mistakes.LONG!r} has 65 characters")


@pytest.mark.usefixtures("users")
def test_a_permission_that_does_not_exist_is_a_warning_of_the_checks_with_the_database() -> None:
    assert messages(check(databases=[]), "W008") == []  # from Django 6.1, None means all databases
    [warning] = messages(check(databases=["default"]), "W008")
    assert warning.startswith(f"{UNKNOWN_PERMISSION} Did you mean 'auth.view_user'?")


@pytest.mark.process
@pytest.mark.usefixtures("users")
def test_runmcp_warns_of_long_names_and_of_permissions_that_do_not_exist() -> None:
    with runmcp("--server", SERVER, env=in_django.ENVIRONMENT) as process:
        process.wait_for(r"\nWarning: The name of the tool 'count_x+' has 65 characters")
        process.wait_for(rf"\nWarning: {re.escape(UNKNOWN_PERMISSION)} Did you mean 'auth.view_user'\?")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
    assert process.errors.count("Warning:") == 2


# Unapplied migrations


HINT = (
    r"You have \d+ unapplied migration\(s\)\. .* for app\(s\): auth, contenttypes, sessions\. "
    r"Run 'python manage\.py migrate' to apply them\.\n"
)
NEED_TABLES = [
    "call count",
    "call count_async",
    "call write --yes",
    "read users://count",
    "prompt ask",
    "list --user ann",
    "config codex --user ann",
]


@pytest.mark.process
@pytest.mark.parametrize("command", NEED_TABLES)
def test_before_migrate_mcp_prints_the_hint_of_runserver_and_no_traceback(command: str, tmp_path: Path) -> None:
    env = {**in_django.ENVIRONMENT, "TEST_SQLITE": str(tmp_path / "db")}
    done = manage("mcp", *command.split(), "--server", SERVER, **env)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no such table: auth_user" in done.stderr
    assert re.search(HINT, done.stderr)
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.process
@pytest.mark.usefixtures("users")
def test_with_all_migrations_applied_mcp_prints_the_traceback_of_a_wrong_query() -> None:
    done = manage("mcp", "call", "broken_query", "--server", SERVER, **in_django.ENVIRONMENT)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "mistakes.py" in done.stderr
    assert "unapplied" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command", ["runmcp", "mcp list"])
def test_a_lifespan_that_needs_a_missing_table_is_one_line(command: str, tmp_path: Path) -> None:
    env = {**in_django.ENVIRONMENT, "TEST_SQLITE": str(tmp_path / "db")}
    done = manage(*command.split(), "--server", "tests.project.mistakes.with_a_lifespan", **env)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"CommandError: The database cannot be used: OperationalError: no such table: auth_user .*\. {HINT}",
        done.stderr,
    )
