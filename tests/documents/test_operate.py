"""The page about operation: its log, its signal and its tables are those of the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_serving.signals import CallRecord, Outcome
from tests.support.documents import DOCS, blocks, environment_of_a_project, manage, project, write_file
from tests.support.harness import ROOT

PAGE = DOCS / "howto" / "operate.md"
FIELDS = list(CallRecord._fields)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("docs") / "mysite")
    for language, code in blocks(PAGE):
        if language == "python":
            write_file(folder, code)
    (folder / "tasks" / "apps.py").write_text(
        "from django.apps import AppConfig\n\n\nclass TasksConfig(AppConfig):\n    name = 'tasks'\n\n"
        "    def ready(self):\n        import tasks.receivers\n"
    )
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", "User.objects.create_user('eve')")
    return folder


def logged_by_a_call(folder: Path, tool: str = "open_tasks", status: int = 0) -> list[dict[str, object]]:
    """What a call writes to standard error: its lines of JSON."""
    done = subprocess.run(
        [sys.executable, "manage.py", "mcp", "call", tool, "--user", "eve"],
        cwd=folder,
        env=environment_of_a_project(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) == bool(status), done.stderr
    return [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def test_the_tables_have_every_field_and_every_outcome() -> None:
    page = PAGE.read_text()
    assert re.findall(r"^\| `(\w+)` \| `mcp_(\w+)` \|", page, re.MULTILINE) == [(each, each) for each in FIELDS]
    assert re.findall(r"^\| `(\w+)` \| [^`]", page, re.MULTILINE) == [str(each) for each in Outcome]


@pytest.mark.process
def test_a_call_writes_the_line_of_the_page(site: Path) -> None:
    (line,) = logged_by_a_call(site)
    (shown,) = (json.loads(code) for language, code in blocks(PAGE) if language == "json")
    assert line.keys() == shown.keys()
    assert (line["mcp_name"], line["mcp_user"], line["mcp_transport"]) == ("open_tasks", "eve", "in-process")
    assert re.fullmatch(r"tools/call open_tasks: ok, [\d.]+ ms, user eve, client \w+", str(line["message"]))


@pytest.mark.process
def test_structlog_has_the_same_fields(site: Path) -> None:
    settings = site / "mysite" / "settings.py"
    before = settings.read_text()
    (code,) = (code for language, code in blocks(PAGE) if code.startswith("import structlog"))
    try:
        settings.write_text(f"{before}\n{code}")
        (line,) = logged_by_a_call(site)
    finally:
        settings.write_text(before)
    assert {f"mcp_{each}" for each in FIELDS} < line.keys()


@pytest.mark.process
def test_the_receiver_of_the_page_warns_of_a_failure(site: Path) -> None:
    with (site / "mysite" / "mcp.py").open("a") as file:
        file.write("\n\n@server.tool()\ndef fails() -> str:\n    raise LookupError\n")
    done = subprocess.run(
        [sys.executable, "manage.py", "mcp", "call", "fails", "--user", "eve"],
        cwd=site,
        env=environment_of_a_project(),
        capture_output=True,
        text=True,
    )
    assert "fails failed for eve: LookupError" in done.stderr
    assert str(ROOT) not in done.stdout


@pytest.mark.process
def test_the_app_of_the_page_stores_calls_without_the_password_and_the_command_removes_old_ones(site: Path) -> None:
    with (site / "mysite" / "mcp.py").open("a") as file:
        file.write("\n\nimport tasks.tools\n")
    manage(site, "manage.py", "migrate", "mcp_calls", "--verbosity", "0")
    arguments = ["name=bob", "password=secret"]
    manage(site, "manage.py", "mcp", "call", "add_account", *arguments, "--user", "eve")
    show = "print(list(Call.objects.values_list('user_name', 'name', 'arguments')))"
    code = f"from mcp_serving.calls.models import Call; {show}"
    stored = manage(site, "manage.py", "shell", "--verbosity", "0", "-c", code)
    assert stored.strip() == str([("eve", "add_account", '{"name": "bob"}')])
    assert manage(site, "manage.py", "clearmcpcalls") == "Removed 0 calls.\n"
