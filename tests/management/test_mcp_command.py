"""``manage.py mcp``: its output in a pipe and at a terminal, its errors and exit statuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.console import SETTINGS as CONSOLE
from tests.support.console import serving_console, token_of
from tests.support.harness import DEADLINE, ROOT, environment
from tests.support.terminal import AT_ITS_TERMINAL

pytestmark = pytest.mark.process


def mcp(shop: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "mcp", *arguments],
        cwd=ROOT,
        env=shop,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


class Screen:
    """A terminal of 80 columns with the command on all three streams."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.text = ""

    def wait_for(self, pattern: str) -> None:
        end = time.monotonic() + DEADLINE
        while not re.search(pattern, self.text):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.text!r}"
            if select.select([self.descriptor], [], [], left)[0]:
                try:
                    self.text += os.read(self.descriptor, 65536).decode()
                except OSError:  # the other side is closed
                    assert re.search(pattern, self.text), f"no {pattern!r} in {self.text!r}"

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())


@contextmanager
def at_a_terminal(shop: dict[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", AT_ITS_TERMINAL, "mcp", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**shop, "COLUMNS": "80"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield process, Screen(master)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(master)


@pytest.fixture
def open_order(shop: dict[str, str]) -> int:
    """The number of an order that can be cancelled."""
    found = mcp(shop, "call", "search_orders", "status=open", "limit=1", "--json")
    number: int = json.loads(found.stdout)["structuredContent"]["orders"][0]["number"]
    return number


def status_of(shop: dict[str, str], number: int) -> str:
    found = mcp(shop, "call", "order_details", f"number={number}", "--json")
    status: str = json.loads(found.stdout)["structuredContent"]["order"]["status"]
    return status


# list and inspect


def test_list_shows_what_the_user_may_use(shop: dict[str, str]) -> None:
    nobody, clerk = mcp(shop, "list"), mcp(shop, "list", "--user", "clerk")
    assert nobody.returncode == clerk.returncode == 0
    assert "search_orders     Find orders by status and customer, newest first." in nobody.stdout
    assert "shop://orders/{number}  One order: its customer, status, lines and total." in nobody.stdout
    assert "order_followup" in nobody.stdout
    assert "cancel_order" not in nobody.stdout
    assert "cancel_order" in clerk.stdout


def test_list_shows_one_kind_as_json(shop: dict[str, str]) -> None:
    listed = json.loads(mcp(shop, "list", "resources", "--json").stdout)
    assert list(listed) == ["resources", "resourceTemplates"]
    assert listed["resources"][0]["uri"] == "shop://products"
    assert listed["resourceTemplates"][0]["uriTemplate"] == "shop://orders/{number}"


def test_inspect_shows_schema_annotations_permission_and_source(shop: dict[str, str]) -> None:
    shown = mcp(shop, "inspect", "cancel_order", "--user", "clerk").stdout
    assert "number  integer, at least 1, required. The number of an order, such as 1001" in shown
    assert "may change data, may destroy data" in shown
    assert "Permission  shop.cancel_order" in shown
    assert re.search(r"Source +example_project/mcp.py:\d+", shown)
    assert '"title": "OrderDetails"' in shown


def test_inspect_as_json_has_the_declaration_and_the_place_of_the_function(shop: dict[str, str]) -> None:
    shown = json.loads(mcp(shop, "inspect", "cancel_order", "--user", "clerk", "--json").stdout)
    assert shown["kind"] == "tool"
    assert shown["inputSchema"]["required"] == ["number"]
    assert (shown["permission"], shown["scopes"], shown["asksFirst"]) == ("shop.cancel_order", [], True)
    lines = (ROOT / "example_project" / "mcp.py").read_text().splitlines()
    assert shown["source"]["file"] == str(ROOT / "example_project" / "mcp.py")
    assert "cancel_order" in "".join(lines[shown["source"]["line"] - 1 : shown["source"]["line"] + 1])


def test_inspect_of_a_hidden_tool_is_one_line_that_names_the_option(shop: dict[str, str]) -> None:
    done = mcp(shop, "inspect", "cancel_order")
    assert done.returncode == 1
    assert done.stderr == (
        "CommandError: There is no tool, resource or prompt 'cancel_order' that a user who is not logged in may use: "
        "`mcp list` shows them, --user NAME says who asks.\n"
    )


# call, read and prompt, in a pipe


def test_a_call_writes_its_result_on_standard_output_and_its_progress_on_standard_error(shop: dict[str, str]) -> None:
    done = mcp(shop, "call", "sales_report", "months=3")
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["months"]) == 3
    assert done.stderr.splitlines() == [
        "progress: 1/3 October 2025",
        "progress: 2/3 November 2025",
        "progress: 3/3 December 2025",
    ]


def test_arguments_are_taken_as_json_too(shop: dict[str, str]) -> None:
    done = mcp(shop, "call", "search_orders", "--json", '{"status": "open", "limit": 2}')
    result = json.loads(done.stdout)
    assert len(result["structuredContent"]["orders"]) == 2
    assert result["content"][0]["type"] == "text"


def test_a_tool_error_has_exit_status_1_and_leaves_standard_output_empty(shop: dict[str, str]) -> None:
    done = mcp(shop, "call", "order_details", "number=9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no order 9" in done.stderr
    as_json = mcp(shop, "call", "order_details", "number=9", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["isError"] is True


def test_a_question_in_a_pipe_needs_yes(shop: dict[str, str], open_order: int) -> None:
    asked = mcp(shop, "call", "cancel_order", f"number={open_order}", "--user", "clerk")
    assert asked.returncode == 1
    assert re.fullmatch(
        rf"CommandError: The user is asked 'Cancel order {open_order} of .*', and standard input is not a terminal: "
        r"run the command at a terminal, or give --yes to accept\.\n",
        asked.stderr,
    )
    assert status_of(shop, open_order) == "open"
    accepted = mcp(shop, "call", "cancel_order", f"number={open_order}", "--user", "clerk", "--yes")
    assert accepted.returncode == 0
    assert status_of(shop, open_order) == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["search_orders", "limit=x"], "The argument 'limit' is 'x'; it has to be JSON of type integer."),
        (["search_orders", "wrong=1"], "There is no argument 'wrong'; allowed are 'status', 'customer', 'limit'."),
        (["search_orders", "--json", "{1"], "--json: the arguments are not valid JSON"),
        (["search_orders", "--token", "x"], "--token is for --url: without it, --user says who calls."),
        (["search_orders", "--user", "stranger"], "--user: there is no user 'stranger'."),
    ],
)
def test_a_mistake_is_one_line(shop: dict[str, str], arguments: list[str], error: str) -> None:
    done = mcp(shop, "call", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"CommandError: {error}")
    assert len(done.stderr.splitlines()) == 1


def test_read_writes_the_contents_of_a_resource(shop: dict[str, str]) -> None:
    assert json.loads(mcp(shop, "read", "shop://orders/1001").stdout)["order"]["number"] == 1001
    as_json = json.loads(mcp(shop, "read", "shop://products", "--json").stdout)
    assert as_json["contents"][0]["mimeType"] == "application/json"
    missing = mcp(shop, "read", "shop://orders/9")
    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1] == "CommandError: There is no order 9."


def test_prompt_writes_its_messages(shop: dict[str, str]) -> None:
    done = mcp(shop, "prompt", "order_followup", "number=1001")
    assert done.stdout.startswith("user:\n  Write a short, friendly follow-up mail to ")
    missing = mcp(shop, "prompt", "order_followup")
    assert missing.stderr == "CommandError: Prompt order_followup lacks arguments: number\n"


def test_the_command_loads_no_web_server_and_no_optional_app() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "django", "mcp", "list"]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "mcp_serving.inspection.command" in loaded
    optional = {f"mcp_serving.{name}" for name in ("console", "tokens", "oauth", "daphne", "asgi")}
    assert loaded & {"twisted", "daphne", "redis", *optional} == set()


# A running server


@pytest.mark.timeout(300)  # a process for each action
def test_with_url_each_action_asks_a_running_server(users_of_its_own: None, tmp_path: Path) -> None:
    env = environment(**CONSOLE)
    with serving_console("runmcp", tmp_path / "notes") as (_, address):
        url = ["--url", f"{address}/mcp", "--token", token_of("clerk")]
        assert re.search("delete +Asks first; needs a permission.", mcp(env, "list", "tools", *url).stdout)
        assert "name  string, required" in mcp(env, "inspect", "delete", *url).stdout
        assert mcp(env, "call", "who", *url).stdout == "for clerk\n"
        without_scope = mcp(env, "call", "delete", "name=tea", *url)
        assert without_scope.returncode == 1
        assert without_scope.stderr.startswith("CommandError: The server answered with HTTP 403 Forbidden: Bearer ")
        assert "things:delete" in without_scope.stderr
        url[-1] = token_of("clerk", "things:delete")
        declined = mcp(env, "call", "delete", "name=tea", *url)
        assert declined.returncode == 1
        assert "standard input is not a terminal" in declined.stderr
        assert mcp(env, "read", "console://staff", *url).stdout == "staff only\n"
        assert "Greet Bob in a friendly way." in mcp(env, "prompt", "greeting", "name=Bob", *url).stdout
        refused = mcp(env, "list", "--url", f"{address}/mcp", "--token", "wrong")
        assert refused.returncode == 1
        assert refused.stderr.startswith("CommandError: The server answered with HTTP 401 Unauthorized")
        assert len(refused.stderr.splitlines()) == 1
    gone = mcp(env, "list", *url)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"CommandError: {address}/mcp cannot be used: ")


# At a terminal


def test_at_a_terminal_progress_is_a_bar_that_gives_way_to_the_result(shop: dict[str, str]) -> None:
    with at_a_terminal(shop, "call", "sales_report", "months=2") as (process, screen):
        screen.wait_for(r"best_seller[\s\S]*\}\r\n")
        assert process.wait(DEADLINE) == 0
    assert "\r\x1b[K[############............] 1/2 November 2025" in screen.text
    assert "\r\x1b[K[########################] 2/2 December 2025\r\x1b[K{" in screen.text


def test_at_a_terminal_the_user_answers_the_question(shop: dict[str, str], open_order: int) -> None:
    arguments = ("call", "cancel_order", f"number={open_order}", "--user", "clerk")
    with at_a_terminal(shop, *arguments) as (process, screen):
        screen.wait_for(rf"Cancel order {open_order} of .*\?\r\nThis would\r\n")
        screen.wait_for(rf"  change Order {open_order} +status Open -> Cancelled\r\n")
        screen.wait_for(r"\[y/N\] ")
        screen.type("n\n")
        screen.wait_for("The user said no to cancel_order: nothing was done")
        assert process.wait(DEADLINE) == 1
    assert status_of(shop, open_order) == "open"
    with at_a_terminal(shop, *arguments) as (process, screen):
        screen.wait_for(r"\[y/N\] ")
        screen.type("y\n")
        screen.wait_for('"status": "cancelled"')
        assert process.wait(DEADLINE) == 0


def test_at_a_terminal_ctrl_c_ends_a_call_at_once(shop: dict[str, str]) -> None:
    with at_a_terminal(shop, "call", "sales_report", "months=3", "pause=60") as (process, screen):
        screen.wait_for("1/3 October 2025")
        screen.type("\x03")
        screen.wait_for(r"Interrupted\.")
        assert process.wait(DEADLINE) == 130


def test_at_a_terminal_a_list_fits_the_width(shop: dict[str, str]) -> None:
    with at_a_terminal(shop, "list") as (process, screen):
        screen.wait_for("order_followup")
        process.wait(DEADLINE)
    assert max(map(len, screen.text.splitlines())) <= 80


def test_at_a_terminal_a_question_in_the_middle_of_a_call_is_answered(users: None) -> None:
    with at_a_terminal(environment(**CONSOLE), "call", "interview") as (process, screen):
        for question, answer in (("Why", "cold"), ("Why really", "old")):
            screen.wait_for(rf"{question}\? \[y/N\] ")
            screen.type("y\n")
            screen.wait_for(r"  Why \(string[^\n]*\): ")
            screen.type(f"{answer}\n")
            screen.wait_for(r"  notify \([^\n]*default true\): |  Notify \([^\n]*default true\): ")
            screen.type("\n")
            screen.text = screen.text.rpartition("default true): ")[2]
        screen.wait_for("cold, then old")
        assert process.wait(DEADLINE) == 0


def test_a_request_for_a_model_is_one_line(users: None) -> None:
    done = mcp(environment(**CONSOLE), "call", "sample")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "CommandError: The tool asked its client for sampling/createMessage, "
    )
