"""Every page of the console in Chromium: the browser's console stays free of errors."""

from __future__ import annotations

import json

import pytest

from tests.support.console import ConsolePage, Site

pytestmark = pytest.mark.process


# The overview and the lists


def test_the_overview_shows_the_server_its_addresses_and_its_problems(page: ConsolePage, site: Site) -> None:
    assert page.go() == "Tests of the console 3.0"
    text = page.text("main")
    for expected in ("Be careful.", "clients with a bearer token", "/mcp", "mcp-serving", "In flight", "nothing"):
        assert expected in text
    counts = page.run("return [...document.querySelectorAll('.counts a')].map((each) => each.innerText)")
    assert [count.split()[1] for count in counts] == ["tools", "resources", "template", "prompt"]


def test_the_list_of_tools_shows_words_for_annotations_and_can_be_filtered(page: ConsolePage) -> None:
    page.go("tools/")
    assert "asks first" in page.text("main")
    page.run(
        "const filter = document.querySelector('[data-filter]'); filter.value = 'megabytes';"
        "filter.dispatchEvent(new Event('input'))"
    )
    assert page.text("[data-filtered]").split("\n")[0] == "big"
    assert "broken" not in page.text("[data-filtered]")


def test_a_tool_is_described_with_permission_hints_schemas_and_source(page: ConsolePage) -> None:
    assert page.go("tools/delete/") == "delete"
    text = page.text("main")
    for expected in (
        "Asks first; needs a permission.",
        "auth.view_user",
        "Can view user",
        "things:delete",
        "Delete your things",
        "tests/project/console.py:",
    ):
        assert expected in text
    schemas = page.run("return [...document.querySelectorAll('.about-card details')].map((each) => each.textContent)")
    assert [each.split()[0] for each in schemas] == ["Input", "Output"]
    assert '"required"' in schemas[0]
    assert '"result"' in schemas[1]
    page.go("tools/every_kind/")
    assert page.run("return document.getElementsByName('arguments-by_default')[0].value") == "given"
    assert "Some text" in page.text("#fields .help")


# The forms


def test_a_form_has_a_field_for_each_kind_of_schema_and_sends_what_was_filled_in(page: ConsolePage) -> None:
    page.go("tools/every_kind/")
    for _ in range(2):
        page.click("[data-jsonform-path=tags] > [data-jsonform-add]")
    page.click("[data-jsonform-path=people] > [data-jsonform-add]")
    page.fill(
        text="two\nlines",
        count="3",
        ratio="0.5",
        on=True,
        colour="blue",
        day="2026-12-01",
        person__name="Ann",
        person__address__street="High Street",
        people__0__name="Bob",
        people__0__address__street="Low Street",
        people__0__address__number="7",
        tags__0="a",
        tags__1="b",
        __jsonform_variant__pet="dog",
        pet____branch_1____good=True,
        __jsonform_variant__either="1",
        either____branch_1__="word",
        node__value="1",
        counts='{"x": 1}',
        maybe_on="True",
    )
    page.click("#call [type=submit]")
    page.wait_for("document.querySelector('#result .took')")
    sent = json.loads(page.run("return document.querySelector('#panel-request code').textContent"))
    assert sent["params"]["arguments"] == {
        "text": "two\nlines",
        "count": 3,
        "ratio": 0.5,
        "on": True,
        "colour": "blue",
        "day": "2026-12-01",
        "person": {"name": "Ann", "address": {"street": "High Street"}},
        "people": [{"name": "Bob", "address": {"street": "Low Street", "number": 7}}],
        "tags": ["a", "b"],
        "pet": {"kind": "dog", "good": True},
        "either": "word",
        "node": {"value": 1},
        "counts": {"x": 1},
        "maybe_on": True,
    }
    assert "Colour.BLUE" in page.text("#result")
    assert "Dog(kind='dog', good=True)" in page.text("#result")


def test_a_form_that_is_filled_in_wrongly_says_so_beside_its_fields(page: ConsolePage) -> None:
    page.go("tools/slow/")
    page.fill(steps="many")
    page.run("document.getElementsByName('arguments-steps')[0].type = 'text'")
    page.fill(steps="many")
    page.click("#call [type=submit]")
    page.wait_for("document.querySelector('#fields .field-error')")
    assert page.text("#fields .has-error .field-error").strip() == "Enter a whole number."
    assert page.text("#status") == "The form has errors."
    assert page.run("return document.activeElement.name") == "arguments-steps"


def test_arguments_can_be_written_as_json(page: ConsolePage) -> None:
    page.go("tools/slow/")
    page.click("[data-switch-mode]")
    page.run("document.getElementById('raw').value = '{\"steps\": 2'")
    page.click("#call [type=submit]")
    page.wait_for("!document.getElementById('raw-error').hidden")
    assert page.text("#raw-error").startswith("This is not valid JSON")
    page.run("document.getElementById('raw').value = '{\"steps\": 2}'")
    page.click("#call [type=submit]")
    page.wait_for("document.querySelector('#result .took')")
    assert page.text("#progress span") == "2 / 2 step 2"


def test_a_tool_with_200_parameters_has_200_fields(page: ConsolePage) -> None:
    assert "200 arguments, the last is 7" in page.call("many", argument_199="7")


# Calls


def test_progress_and_log_messages_are_shown_as_they_come(page: ConsolePage) -> None:
    page.call("slow", wait=False, steps="3", seconds="0.3")
    page.wait_for("document.querySelector('#progress progress').value === 1")
    assert page.text("#status") == "Running…"
    page.wait_for("document.querySelector('#result .took')")
    assert page.text("#log ol").split("\n") == ["info did step 1", "info did step 2", "info did step 3"]
    assert "all steps done" in page.text("#result")


def test_a_call_can_be_cancelled(page: ConsolePage, site: Site) -> None:
    page.call("slow", wait=False, steps="100", seconds="1")
    page.wait_for("document.querySelector('#progress progress').value === 1")
    page.click("[data-cancel]")
    page.wait_for("document.getElementById('status').innerText === 'Cancelled.'")
    site.notes.wait_for("slow cancelled")
    assert "cancelled from within" not in site.process.errors


def test_a_question_that_is_accepted_runs_the_tool_once(page: ConsolePage, site: Site) -> None:
    page.call("delete", wait=False, name="tea")
    page.wait_for("document.querySelector('#question form')")
    assert "Delete tea?" in page.text("#question")
    assert page.text("#status") == "Waiting for your answer."
    assert "deleted tea" not in site.notes.all()
    page.click("#question [value=accept]")
    page.wait_for("document.querySelector('#result .took')")
    assert "deleted tea" in page.text("#result")
    assert site.notes.all().count("deleted tea") == 1


def test_a_question_that_is_declined_runs_nothing(page: ConsolePage, site: Site) -> None:
    page.call("delete", wait=False, name="coffee")
    page.wait_for("document.querySelector('#question form')")
    page.click("#question [value=decline]")
    page.wait_for("document.querySelector('#result .took')")
    assert "The user said no to delete: nothing was done." in page.text("#result")
    assert "deleted coffee" not in site.notes.all()


def test_a_question_that_is_closed_is_no_answer(page: ConsolePage) -> None:
    page.call("delete", wait=False, name="milk")
    page.wait_for("document.querySelector('#question form')")
    page.click("#question [value=cancel]")
    page.wait_for("document.querySelector('#result .took')")
    assert "closed the question about delete without an answer" in page.text("#result")


def test_a_question_with_fields_is_a_form(page: ConsolePage) -> None:
    page.call("give_back", wait=False, name="tea")
    page.wait_for("document.querySelector('#question form')")
    assert "Why" in page.text("#question label")
    page.run("document.getElementsByName('question-0-arguments-reason')[0].value = 'cold'")
    page.click("#question [value=accept]")
    page.wait_for("document.querySelector('#result .took')")
    assert "tea was given back: cold, notify=True" in page.text("#result")


def test_an_unexpected_exception_is_what_a_client_receives_with_the_traceback_for_staff(page: ConsolePage) -> None:
    shown = page.call("broken")
    assert "Error executing tool broken" in shown
    assert "RuntimeError: the secret of the log" in page.text(".traceback")
    response = page.run("return document.querySelector('#panel-response code').textContent")
    assert json.loads(response)["result"]["isError"] is True
    assert "the secret of the log" in response  # with DEBUG, the client sees the text too


def test_an_error_for_the_model_is_shown_as_the_model_reads_it(page: ConsolePage) -> None:
    assert "There is no such order." in page.call("refused")
    assert page.text(".traceback") == ""


def test_five_megabytes_are_shown_in_part_and_then_whole(page: ConsolePage) -> None:
    page.call("big")
    assert page.run("return document.querySelector('#result .part code').textContent.length") == 50_000
    page.run("document.querySelectorAll('#result details').forEach((each) => (each.open = true))")
    page.click("#result [data-whole]")
    assert page.run("return document.querySelector('#result .part code').textContent.length") == 5 * 2**20


def test_an_image_is_shown(page: ConsolePage) -> None:
    page.call("picture")
    page.wait_for("document.querySelector('#result img')?.complete")
    assert page.run("return document.querySelector('#result img').naturalWidth") == 64
    assert "image/png" in page.text("#result figcaption")


def test_sounds_links_and_embedded_resources_are_shown_and_text_is_only_text(page: ConsolePage) -> None:
    page.call("media")
    assert "<script>alert(1)</script> is only text" in page.text("#result")
    page.wait_for("document.querySelector('#result audio').duration > 0.4")
    assert page.run("return document.querySelector('#result .tree .key').innerText") == "inside"
    page.run("document.querySelector('#result .resource-link a').click()")
    page.wait_for("document.title.startsWith('console://table')")
    assert "Coffee" in page.text("table")


def test_the_call_can_be_copied_as_json_curl_and_python(page: ConsolePage, site: Site) -> None:
    page.call("who")
    texts = page.run(
        "return ['request', 'response', 'curl', 'python'].map((id) => "
        "document.querySelector(`#panel-${id} code`).textContent)"
    )
    assert json.loads(texts[0])["method"] == "tools/call"
    assert "for clerk" in json.loads(texts[1])["result"]["content"][0]["text"]
    assert texts[2].startswith(f"curl {site.address}/mcp \\\n")
    assert "Bearer $MCP_TOKEN" in texts[2]
    compile(texts[3], "snippet", "exec")
    page.run("document.getElementById('tab-curl').click()")
    assert page.run("return !document.getElementById('panel-curl').hidden")


def test_an_app_is_shown_in_a_sandbox_and_calls_tools_as_the_user(page: ConsolePage) -> None:
    page.call("clock")
    attributes = page.run(
        "const frame = document.querySelector('iframe'); return [frame.getAttribute('sandbox'), frame.src]"
    )
    assert attributes[0] == "allow-scripts allow-forms"
    # The page cannot look into the frame. The app was told the result, called `who`, and wants a height that shows it.
    page.wait_for("document.querySelector('iframe').style.height === height", height=f"{300 + len('for clerk')}px")
    assert page.run("return document.querySelector('iframe').contentDocument") is None
    page.page.go(attributes[1])
    assert page.run("return window.origin") == "null"
    page.page.problems.clear()


# Resources, prompts, notifications


@pytest.mark.parametrize(
    ("uri", "selector", "expected"),
    [
        ("console://json", ".tree", "Ann"),
        ("console://table", "table", "Coffee"),
        ("console://picture", "figcaption", "image/png"),
        ("console://drawing", "figcaption", "image/svg+xml"),
        ("console://file", ".part", "22"),
        ("console://staff", "code", "staff"),
    ],
)
def test_each_mime_type_has_its_viewer(page: ConsolePage, uri: str, selector: str, expected: str) -> None:
    assert page.go(f"resources/read/?uri={uri}") == uri
    assert expected in page.text(f"main {selector}")


def test_html_is_previewed_without_scripts(page: ConsolePage) -> None:
    page.go("resources/read/?uri=console://page")
    page.wait_for("document.querySelector('iframe.preview')")
    assert page.run("return document.title") != "ran"
    assert page.run("return document.querySelector('iframe').contentDocument") is None
    # Chromium tells that it refused the script: that is what the sandbox is for.
    page.page.problems[:] = [each for each in page.page.problems if "Blocked script execution" not in each]


def test_a_template_completes_its_variables_and_leads_to_the_resource(page: ConsolePage) -> None:
    page.go("resources/")
    assert "console://orders/{city}/{number}" in page.text("main")
    page.go("resources/template/?uri=console://orders/{city}/{number}")
    page.run(
        "const city = document.querySelector('[data-argument=city]');"
        "city.value = 'a'; city.dispatchEvent(new Event('input'))"
    )
    page.wait_for("document.querySelector('datalist option')")
    options = page.run("return [...document.querySelectorAll('datalist option')].map((each) => each.value)")
    assert options == ["Amsterdam", "Antwerp"]
    page.run(
        "document.querySelector('[data-argument=city]').value = 'Antwerp';"
        "document.querySelector('[data-argument=number]').value = '7';"
        "document.querySelector('main form').requestSubmit()"
    )
    page.wait_for("document.title.startsWith('console://orders/Antwerp/7')")
    assert "order 7 in Antwerp" in page.text("main")


def test_a_prompt_shows_its_messages(page: ConsolePage) -> None:
    page.go("prompts/")
    page.click(".list a")
    page.wait_for("document.title.startsWith('greeting')")
    page.run(
        "document.querySelector('[data-argument=name]').value = 'Bob';"
        "document.querySelector('main form').requestSubmit()"
    )
    page.wait_for("document.querySelector('.message')")
    assert "Greet Bob in a friendly way." in page.text(".messages")


def test_notifications_are_shown_as_they_arrive(page: ConsolePage, site: Site) -> None:
    page.go("notifications/?uri=console://json")
    page.click("#subscribe .primary")
    page.wait_for("document.getElementById('subscription-status').innerText.startsWith('Subscribed')")
    other = site.page("clerk")
    other.call("touch", uri="console://json")
    other.call("touch", uri="console://table")
    page.wait_for("document.querySelector('#notifications li')")
    assert "notifications/resources/updated" in page.text("#notifications li")
    assert "console://json" in page.text("#notifications li")
    assert page.run("return document.querySelectorAll('#notifications li').length") == 1
    page.click("[data-stop]")
    assert page.text("#subscription-status") == "Not subscribed."


# Users


def test_a_user_without_the_permission_does_not_find_the_tool(site: Site) -> None:
    page = site.page("ann")
    page.go("tools/")
    assert "delete" not in page.text("main")
    assert "Not Found" in page.go("tools/delete/") or "Page not found" in page.text("body")
    page.go("resources/read/?uri=console://staff")
    assert "Unknown resource: console://staff" in page.text("main")


def test_staff_who_may_change_users_see_what_another_user_sees_and_call_nothing(site: Site) -> None:
    page = site.page("root")
    page.go("view-as/")
    page.run(
        "document.getElementById('username').value = 'nobody there';document.querySelector('main form').requestSubmit()"
    )
    page.wait_for("document.querySelector('#username-error')")
    assert page.text("#username-error") == "There is no user “nobody there”."
    page.run("document.getElementById('username').value = 'ann';document.querySelector('main form').requestSubmit()")
    page.wait_for("document.querySelector('.view-as')")
    assert "You see what ann would see." in page.text(".view-as")
    assert "delete" not in page.text("main")
    page.go("tools/who/")
    assert page.run("return document.querySelector('#call [type=submit]').disabled")
    status = page.run(
        "const form = document.getElementById('call');"
        "return (await fetch(form.action, { method: 'POST', body: new FormData(form) })).status"
    )
    assert status == 403
    page.click(".view-as button")
    page.wait_for("!document.querySelector('.view-as')")
    assert "delete" in page.text("main")


def test_others_cannot_view_as(page: ConsolePage) -> None:
    page.go()
    assert "View as" not in page.text("nav")
    status = page.run("return (await fetch('view-as/')).status")
    assert status == 403
    page.page.problems.clear()  # the browser counts the answer 403 as a failed request


# Connecting a client


def test_each_client_gets_the_address_and_a_token_that_works(site: Site) -> None:
    import subprocess
    import sys

    from tests.support.harness import environment

    page = site.page("root")
    page.go("connect/")
    assert f"{site.address}/mcp" in page.text("main")
    assert "Its scopes: things:delete" in page.text("main")
    page.run(
        "document.getElementById('token-name').value = 'laptop';document.querySelector('main form').requestSubmit()"
    )
    page.wait_for("document.querySelector('.secret')")
    token = page.text(".secret")
    assert token.startswith("mcp_")
    text = page.run("return document.querySelector('#panel-cursor pre code').textContent")
    entry = json.loads(text)["mcpServers"]["console-tests"]
    assert entry == {"url": f"{site.address}/mcp", "headers": {"Authorization": f"Bearer {token}"}}
    page.click("#tab-codex")
    assert "[mcp_servers.console-tests]" in page.text("#panel-codex")
    command = [sys.executable, "-m", "django", "mcp", "call", "who", "--url", f"{site.address}/mcp", "--token", token]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "for root\n", done.stderr
    page.go("connect/")
    assert token not in page.run("return document.documentElement.outerHTML")
    page.no_problems()


def test_staff_without_the_permission_create_no_token(page: ConsolePage) -> None:
    page.go("connect/")
    assert "You may not create tokens" in page.text("main")
    status = page.run(
        """
        const token = document.cookie.match(/csrftoken=([^;]*)/)?.[1] ?? "";
        return (await fetch("", { method: "POST", headers: { "X-CSRFToken": token } })).status;
        """
    )
    assert status == 403
    page.page.problems.clear()


def test_no_page_has_an_error_in_the_console_of_the_browser(page: ConsolePage) -> None:
    for path in (
        "",
        "tools/",
        "tools/every_kind/",
        "resources/",
        "prompts/",
        "prompts/greeting/",
        "notifications/",
        "connect/",
    ):
        page.go(path)
        page.no_problems()
