"""The example shop as a user meets it: started by its own commands, used with the SDK's client."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from tests.support.asgi_servers import LISTENING
from tests.support.browser import running_browser
from tests.support.harness import DEADLINE, ROOT, Process, reserved_port, running
from tests.support.sdk_sign_in import SDKClient
from tests.support.sign_in import waiting_for_callback

pytestmark = pytest.mark.process

READ_TOOLS = ["order_details", "revenue_by_month", "sales_report", "search_orders"]
WRITE_TOOLS = {
    "clerk": ["cancel_order", "restock_product"],
    "manager": ["cancel_order", "refund_order", "restock_product"],
}
MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}
ANNOUNCED = r"is at http://([\d.]+:\d+)/mcp"


async def use_all_of_it(client: Client, version: str) -> None:
    """List and call what everybody may, read the resources, get the prompt, see progress."""
    assert client.session.protocol_version == version
    assert sorted(tool.name for tool in (await client.list_tools()).tools) == READ_TOOLS
    orders = await client.call_tool("search_orders", {"status": "open", "limit": 2})
    assert orders.structured_content is not None
    assert len(orders.structured_content["orders"]) == 2
    order = await client.call_tool("order_details", {"number": 1001})
    assert order.structured_content is not None
    assert order.structured_content["order"]["total"] == "463.80"
    unknown = await client.call_tool("order_details", {"number": 7})
    assert unknown.is_error
    revenue = await client.call_tool("revenue_by_month", {"year": 2025})
    assert revenue.structured_content is not None
    assert len(revenue.structured_content["result"]) == 12
    hidden = await client.call_tool("restock_product", {"sku": "TEA-SEN-0250", "quantity": 5})
    assert hidden.content[0].text == "Unknown tool: restock_product"  # type: ignore[union-attr]

    steps: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    report = await client.call_tool("sales_report", {"months": 6, "pause": 0.01}, progress_callback=on_progress)
    assert not report.is_error
    assert steps == [1, 2, 3, 4, 5, 6]

    resources = await client.list_resources()
    assert [str(resource.uri) for resource in resources.resources] == ["shop://products"]
    templates = await client.list_resource_templates()
    assert [template.uri_template for template in templates.resource_templates] == ["shop://orders/{number}"]
    for uri in ("shop://products", "shop://orders/1001"):
        contents = (await client.read_resource(uri)).contents
        assert contents[0].mime_type == "application/json"
    prompt = await client.get_prompt("order_followup", {"number": "1001"})
    assert "order 1001" in prompt.messages[0].content.text  # type: ignore[union-attr]


def talk(server: str | StdioServerParameters, mode: str) -> None:
    async def run() -> None:
        with anyio.fail_after(DEADLINE):
            async with Client(server, mode=mode) as client:
                await use_all_of_it(client, MODES[mode])

    anyio.run(run)


@contextmanager
def serving(
    command: list[str], shop: dict[str, str], ready: str, timeout: float = DEADLINE
) -> Iterator[tuple[Process, str]]:
    """The shop under some web server on a port of its own, which it prints; ``ready`` finds it in what it prints."""
    with running(command, env={**shop, "EXAMPLE_PORT": "0"}, start_new_session=True) as process:
        try:
            yield process, f"http://{process.wait_for(ready, timeout)[1]}"
        finally:
            if process.popen.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(600)  # where it finds no virtual environment it makes one first
def test_make_run_ends_with_mcp_beside_the_django_pages(shop: dict[str, str]) -> None:
    with serving(["make", "run"], shop, ANNOUNCED, timeout=500) as (process, address):
        for mode in MODES:
            talk(f"{address}/mcp", mode)
        assert b"<h1>Orders</h1>" in urllib.request.urlopen(f"{address}/orders/").read()
        assert b"463.80" in urllib.request.urlopen(f"{address}/orders/1001/").read()
        assert urllib.request.urlopen(f"{address}/healthz").read().strip() == b"ok"
        assert urllib.request.urlopen(f"{address}/admin/login/").status == 200
        os.killpg(process.pid, signal.SIGINT)
        process.wait_for("Shutting down: received SIGINT")
        process.wait()


@pytest.mark.timeout(600)  # as above
def test_a_user_signs_in_from_a_client_as_make_run_says(shop: dict[str, str], tmp_path: Path) -> None:
    async def work(sdk: SDKClient) -> None:
        async with sdk.connected() as client:
            tools = sorted(tool.name for tool in (await client.list_tools()).tools)
            assert tools == sorted(READ_TOOLS + WRITE_TOOLS["clerk"])
            orders = await client.call_tool("search_orders", {"status": "open", "limit": 2})
            assert orders.structured_content is not None
            assert len(orders.structured_content["orders"]) == 2

    printed = tmp_path / "printed"
    with reserved_port() as port, printed.open("wb") as stdout:
        options: Any = {"env": {**shop, "EXAMPLE_PORT": str(port)}, "stdout": stdout, "start_new_session": True}
        with running(["make", "run"], **options) as process, running_browser(tmp_path / "profile") as browser:
            try:
                process.wait_for(ANNOUNCED, timeout=500)
                told = re.search(
                    r"add (\S+) to it\. In the browser .* log in as (\w+) with the password (\w+)", printed.read_text()
                )
                assert told
                with waiting_for_callback() as callback:
                    sdk = SDKClient(told[1], browser, callback, user=told[2], password=told[3])
                    anyio.run(work, sdk)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
    for shown in ("demo", "Use the shop in your name, with your permissions"):
        assert shown in sdk.page


def test_make_run_tells_the_address_of_the_console_and_a_staff_user_who_can_log_in(
    shop: dict[str, str],
) -> None:
    env = {**shop, "EXAMPLE_PORT": "8123"}
    recipe = (ROOT / "Makefile").read_text().partition("\nrun:")[2].partition("\n\n")[0]
    assert "manage.py create_demo_data --demo-user" in recipe
    manage = [sys.executable, "manage.py"]
    told = subprocess.run(
        [*manage, "create_demo_data", "--demo-user"], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert "The console is at http://localhost:8123/mcp-console/, for staff such as the user demo." in told.stdout
    password = told.stdout.rpartition("password ")[2].strip()
    check = (
        "from django.contrib.auth import authenticate\n"
        f"print(authenticate(username='demo', password={password!r}).is_staff)"
    )
    done = subprocess.run([*manage, "shell", "--command", check], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip().endswith("True"), done.stderr


@pytest.mark.skipif(bool(os.environ.get("EXAMPLE_PORT")), reason="the default is overridden")
def test_without_a_word_about_it_the_shop_is_served_at_port_8000() -> None:
    script = "from example_project.serving import build_daphne; print(build_daphne().endpoints)"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
    with running([sys.executable, "-c", script], env=env) as process:
        assert process.wait() == 0
        assert process.output() == b"['tcp:port=8000:interface=127.0.0.1']\n"


SERVERS = {
    "plain daphne": (
        ["daphne", "-b", "127.0.0.1", "-p", "0", "example_project.asgi:application"],
        LISTENING["daphne"],
    ),
    "uvicorn": (
        ["uvicorn", "--host", "127.0.0.1", "--port", "0", "example_project.asgi:application"],
        LISTENING["uvicorn"],
    ),
    "runserver": ([sys.executable, "manage.py", "runserver", "--noreload", "0"], LISTENING["daphne"]),
}


@pytest.mark.parametrize(("command", "ready"), SERVERS.values(), ids=SERVERS)
def test_the_same_mount_works_under_other_ways_of_serving_it(
    command: list[str], ready: str, shop: dict[str, str]
) -> None:
    program = command[0]
    if program in ("daphne", "uvicorn"):
        command = [sys.executable, "-m", program, *command[1:]]
    with serving(command, shop, ready) as (_, address):
        for mode in MODES:
            talk(f"{address}/mcp", mode)


def parameters(shop: dict[str, str], *arguments: str, **changes: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["manage.py", "runmcp", *arguments], env={**shop, **changes}, cwd=ROOT
    )


@pytest.mark.parametrize("mode", MODES)
def test_all_of_it_works_over_stdio(mode: str, shop: dict[str, str]) -> None:
    talk(parameters(shop), mode)


@pytest.mark.parametrize("mode", MODES)
def test_both_transports_serve_all_of_it_at_the_same_time(mode: str, shop: dict[str, str]) -> None:
    async def run(port: int) -> None:
        with anyio.fail_after(DEADLINE):
            both = parameters(shop, "--transport", "both", EXAMPLE_PORT=str(port))
            async with (
                Client(both, mode=mode) as over_stdio,
                Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as over_http,
                anyio.create_task_group() as group,
            ):
                group.start_soon(use_all_of_it, over_stdio, MODES[mode])
                group.start_soon(use_some_of_it, over_http)

    with reserved_port() as port:
        anyio.run(run, port)


async def use_some_of_it(client: Client) -> None:
    """While the other client does the rest."""
    for _ in range(10):
        order = await client.call_tool("order_details", {"number": 1001})
        assert order.structured_content is not None
        assert order.structured_content["order"]["total"] == "463.80"


def test_the_end_of_standard_input_shuts_http_down_too_and_exits_with_0(shop: dict[str, str]) -> None:
    command = [sys.executable, "manage.py", "runmcp", "--transport", "both"]
    with serving(command, shop, ANNOUNCED) as (process, address):
        assert urllib.request.urlopen(f"{address}/healthz").status == 200
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
        assert "Shutting down: standard input was closed" in process.errors
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"{address}/healthz")


# The roles


def logged_in_cookie(shop: dict[str, str], name: str) -> str:
    """The session cookie of a demo user, as after a login at /admin/."""
    script = (
        "from django.contrib.auth.models import User; from django.test import Client; browser = Client(); "
        f"browser.force_login(User.objects.get(username={name!r})); print(browser.cookies['sessionid'].value)"
    )
    command = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=shop, check=True, capture_output=True, text=True)
    return f"sessionid={done.stdout.strip()}"


async def work_as(name: str, url: str, cookie: str, mode: str) -> None:
    questions: list[str] = []

    async def accept(_: Any, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={})

    async with (
        httpx2.AsyncClient(headers={"cookie": cookie}, timeout=DEADLINE) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, elicitation_callback=accept) as client,
    ):
        tools = sorted(tool.name for tool in (await client.list_tools()).tools)
        assert tools == sorted([*READ_TOOLS, *WRITE_TOOLS[name]])
        before, after = [
            (await client.call_tool("restock_product", {"sku": "TEA-SEN-0250", "quantity": 5})).structured_content
            for _ in range(2)
        ]
        assert before is not None
        assert after is not None
        assert after["stock"] - before["stock"] == 5
        found = (await client.call_tool("search_orders", {"status": "open", "limit": 1})).structured_content
        assert found is not None
        number = found["orders"][0]["number"]
        done = (await client.call_tool("cancel_order", {"number": number})).structured_content
        assert done is not None
        assert done["order"]["status"] == "cancelled"
        assert [question.split(" of ")[0] for question in questions] == [f"Cancel order {number}"]


def test_those_who_are_logged_in_may_do_what_their_role_may(shop: dict[str, str]) -> None:
    cookies = {name: logged_in_cookie(shop, name) for name in WRITE_TOOLS}
    command = [sys.executable, "manage.py", "runmcp", "--transport", "http"]

    async def run(address: str) -> None:
        with anyio.fail_after(DEADLINE):
            for name, mode in zip(WRITE_TOOLS, MODES, strict=True):
                await work_as(name, f"{address}/mcp", cookies[name], mode)

    with serving(command, shop, ANNOUNCED) as (_, address):
        anyio.run(run, address)


def test_who_has_subscribed_to_an_order_is_told_when_it_changes(shop: dict[str, str]) -> None:
    async def work(address: str, cookie: str) -> None:
        answer = ElicitResult(action="accept", content={})

        async def accept(*_: Any) -> ElicitResult:
            return answer

        async with (
            httpx2.AsyncClient(headers={"cookie": cookie}, timeout=DEADLINE) as http,
            Client(streamable_http_client(address, http_client=http), elicitation_callback=accept) as clerk,
            Client(address) as anybody,
        ):
            found = (await clerk.call_tool("search_orders", {"status": "open", "limit": 1})).structured_content
            assert found is not None
            number = found["orders"][0]["number"]
            uris = [f"shop://orders/{number}", "shop://products"]
            async with anybody.listen(resource_subscriptions=uris) as events:
                await clerk.call_tool("cancel_order", {"number": number})
                await clerk.call_tool("restock_product", {"sku": "TEA-SEN-0250", "quantity": 5})
                with anyio.fail_after(DEADLINE):
                    assert [(await anext(aiter(events))).uri for _ in uris] == uris  # type: ignore[union-attr]

    with serving([sys.executable, "manage.py", "runmcp", "--transport", "http"], shop, ANNOUNCED) as (
        _,
        address,
    ):
        anyio.run(work, f"{address}/mcp", logged_in_cookie(shop, "clerk"))


def test_the_shops_own_tests_pass(shop: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "example_project"], cwd=ROOT, env=shop, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 0 tests" not in done.stderr


def test_the_demo_users_cannot_log_in_with_a_password(shop: dict[str, str]) -> None:
    script = (
        "from django.contrib.auth.models import User; "
        "users = User.objects.exclude(username='demo').order_by('username'); "  # make run has made the user demo
        "print([(user.username, user.has_usable_password()) for user in users])"
    )
    command = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=shop, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[('clerk', False), ('manager', False)]"
