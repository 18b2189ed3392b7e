"""The project of docs/tools.md, written out and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import DOCS, blocks, write_file
from tests.support.harness import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

CONFTEST = "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\nimport django\ndjango.setup()\n"
MORE_TESTS = """
import json

from django.contrib.auth.models import Permission, User
from django.test import TestCase
from mcp_types import ResourceTemplateReference

from mcp_serving.testing import client
from mysite import dashboard
from mysite.mcp import server
from orders.models import Order


class PageTests(TestCase):
    def setUp(self):
        Order.objects.create(number=7, customer="Ann")
        Order.objects.create(number=8, customer="Bob", cancelled=True)
        self.clerk = User.objects.create_user("clerk")
        self.clerk.user_permissions.add(Permission.objects.get(codename="view_order"))

    async def test_the_resources_are_what_the_page_says(self):
        async with client(server, user=self.clerk) as session:
            read = [json.loads((await session.read_resource(uri)).contents[0].text) for uri in ("orders://open", "orders://7")]
            self.assertEqual(read, [[7], {"number": 7, "customer": "Ann"}])
            templates = (await session.list_resource_templates()).resource_templates
            self.assertEqual([template.uri_template for template in templates], ["orders://{number}"])
            with self.assertRaisesMessage(Exception, "There is no order 9."):
                await session.read_resource("orders://9")
            reference = ResourceTemplateReference(type="ref/resource", uri="orders://{number}")
            completed = await session.complete(reference, {"name": "number", "value": "7"})
            self.assertEqual(completed.completion.values, ["7"])

    async def test_the_prompt_is_what_the_page_says(self):
        async with client(server, user=self.clerk) as session:
            prompt = await session.get_prompt("apologise", {"number": "7"})
            self.assertIn("apology to Ann: order 7 is late", prompt.messages[0].content.text)

    async def test_both_tools_report_progress(self):
        for mode in ("auto", "legacy"):
            for tool in ("check_orders", "check_orders_in_a_thread"):
                steps = []

                async def reported(progress, total, message):
                    steps.append((progress, total, message))

                async with client(server, mode=mode) as session:
                    result = await session.call_tool(tool, {}, progress_callback=reported)
                self.assertEqual(result.structured_content, {"result": 2})
                self.assertEqual(steps, [(1, 2, "Order 7"), (2, 2, "Order 8")])

    async def test_the_app_is_for_those_with_the_permission_and_its_page_for_everybody(self):
        async with client(dashboard.server, user=self.clerk) as session:
            (tool,) = (await session.list_tools()).tools
            self.assertEqual(tool.meta, {"ui": {"resourceUri": "ui://orders/dashboard.html"}})
            result = await session.call_tool("show_orders", {})
            self.assertEqual(result.content[0].text, "There are 2 orders.")
        async with client(dashboard.server) as session:
            self.assertEqual((await session.list_tools()).tools, [])
            (page,) = (await session.read_resource("ui://orders/dashboard.html")).contents
            self.assertEqual(page.mime_type, "text/html;profile=mcp-app")
"""


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "mysite"
    folder.mkdir()
    run(folder, "-m", "django", "startproject", "mysite", ".")
    run(folder, "manage.py", "startapp", "orders")
    for language, code in blocks(DOCS / "tools.md"):
        if language == "python":
            write_file(folder, code)
    with (folder / "mysite" / "settings.py").open("a") as settings:
        settings.write("INSTALLED_APPS += ['mcp_serving', 'orders']\n")
        settings.write("MCP_SERVING = {'SERVER': 'mysite.mcp.server'}\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "more").mkdir()
    (folder / "more" / "tests.py").write_text(MORE_TESTS)
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


def test_the_resources_the_prompt_the_progress_and_the_app_on_the_page_work(mysite: Path) -> None:
    assert "Ran 4 tests" in run(mysite, "manage.py", "test", "more")


def test_the_reading_server_on_the_page_has_the_reading_tools(mysite: Path) -> None:
    script = (
        "import asyncio; from mysite.reading import server; "
        "print([tool.name for tool in asyncio.run(server.list_tools())])"
    )
    assert "['orders_list_orders']" in run(mysite, "manage.py", "shell", "-c", script)


def test_the_project_on_the_page_has_no_problem_that_check_finds(mysite: Path) -> None:
    run(mysite, "manage.py", "check")
    run(mysite, "manage.py", "makemigrations", "--check")
