"""The project of docs/tools.md, written out and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.process

DOCUMENT = (ROOT / "docs" / "tools.md").read_text()
CONFTEST = "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\nimport django\ndjango.setup()\n"


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "mysite"
    folder.mkdir()
    run(folder, "-m", "django", "startproject", "mysite", ".")
    run(folder, "manage.py", "startapp", "orders")
    for name, code in re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(code)
    with (folder / "mysite" / "settings.py").open("a") as settings:
        settings.write("INSTALLED_APPS += ['mcp_serving', 'orders']\n")
        settings.write("MCP_SERVING = {'SERVER': 'mysite.mcp.server'}\n")
    (folder / "conftest.py").write_text(CONFTEST)
    run(folder, "manage.py", "makemigrations", "--verbosity", "0")
    return folder


def run(folder: Path, *arguments: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO_", "TEST_"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_django_tests_on_the_page_pass(mysite: Path) -> None:
    assert "Ran 3 tests" in run(mysite, "manage.py", "test", "orders")


def test_the_pytest_function_on_the_page_passes(mysite: Path) -> None:
    assert "1 passed" in run(mysite, "-m", "pytest", "-q", "test_orders.py")


def test_the_reading_server_on_the_page_has_the_reading_tools(mysite: Path) -> None:
    script = (
        "import asyncio; from mysite.reading import server; "
        "print([tool.name for tool in asyncio.run(server.list_tools())])"
    )
    assert "['orders_list_orders']" in run(mysite, "manage.py", "shell", "-c", script)


def test_the_project_on_the_page_has_no_problem_that_check_finds(mysite: Path) -> None:
    run(mysite, "manage.py", "check")
    run(mysite, "manage.py", "makemigrations", "--check")
