"""The console by keyboard, and what its buttons copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.console import ConsolePage, Site, token_of

pytestmark = pytest.mark.process


def test_a_tool_can_be_found_filled_in_run_and_read_by_keyboard(page: ConsolePage) -> None:
    page.go("tools/")
    page.press("Tab")
    assert page.run("return document.activeElement.className") == "skip"
    page.press("Enter")
    page.tab_to("focused.innerText.startsWith('slow')")
    page.press("Enter")
    page.wait_for("document.getElementById('call') && document.readyState === 'complete'")
    page.tab_to("focused.name === 'arguments-steps'")
    assert page.run("return document.querySelector(`label[for='${document.activeElement.id}']`).innerText").strip()
    page.run("document.activeElement.select()")
    page.press("2")
    page.press("Enter", ctrl=True)
    page.wait_for("document.querySelector('#result .took')")
    assert page.text("#progress span") == "2 / 2 step 2"
    page.tab_to("focused.id === 'tab-request'")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.run("return document.activeElement.id") == "tab-curl"
    assert page.run("return !document.getElementById('panel-curl').hidden")
    page.press("ArrowLeft")
    assert page.run("return !document.getElementById('panel-response').hidden")


def test_a_question_takes_the_focus_and_is_answered_by_keyboard(page: ConsolePage) -> None:
    page.call("delete", wait=False, name="sugar")
    page.wait_for("document.querySelector('#question form')")
    assert page.run("return document.activeElement.value") == "accept"
    page.press("Tab")
    page.press("Enter")
    page.wait_for("document.querySelector('#result .took')")
    assert "The user said no to delete" in page.text("#result")


def copied(page: ConsolePage, panel: str) -> str:
    """What the button of a panel puts on the clipboard."""
    page.click(f"#tab-{panel}")
    page.run("await navigator.clipboard.writeText('')")
    page.click(f"#panel-{panel} [data-copy-block]")
    page.wait_for(f"document.querySelector('#panel-{panel} [data-copy-block]').getAttribute('aria-label') === 'Copied'")
    return str(page.run("return await navigator.clipboard.readText()"))


def test_the_buttons_copy_json_and_curl_and_python_that_make_the_same_call(page: ConsolePage, site: Site) -> None:
    page.page._command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.page._command("Page.bringToFront")
    page.call("every_argument", text='it\'s $HOME "quoted" \\ ü', number="7")
    request, response = json.loads(copied(page, "request")), json.loads(copied(page, "response"))
    expected = {"text": 'it\'s $HOME "quoted" \\ ü', "number": 7}
    assert request["params"]["arguments"] == expected
    assert json.loads(response["result"]["content"][0]["text"]) == {**expected, "user": "clerk"}
    curl, python = copied(page, "curl"), copied(page, "python")
    env = {**os.environ, "MCP_TOKEN": token_of("ann")}
    done = subprocess.run(["sh", "-c", curl], env=env, capture_output=True, text=True, timeout=60)
    assert json.loads(_result_of(done.stdout)["content"][0]["text"]) == {**expected, "user": "ann"}, done.stderr
    done = subprocess.run([sys.executable, "-c", python], env=env, capture_output=True, text=True, timeout=60)
    assert '"user": "ann"' in done.stdout, done.stderr
    assert "s $HOME" in done.stdout


def _result_of(text: str) -> dict[str, object]:
    """The result in a JSON response, or in an event stream."""
    data = next((line[6:] for line in text.splitlines() if line.startswith("data: {")), text)
    found: dict[str, object] = json.loads(data)["result"]
    return found
