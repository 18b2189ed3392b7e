"""Questions in the console: with a preview, in the middle of a call, and what the console cannot answer."""

from __future__ import annotations

import pytest

from tests.support.console import ConsolePage, Site

pytestmark = pytest.mark.process


@pytest.fixture
def group() -> str:
    """The name of a group in the database that the site uses."""
    from django.contrib.auth.models import Group

    Group.objects.all().delete()
    return str(Group.objects.create(name="clerks"))


def groups() -> list[str]:
    from django.contrib.auth.models import Group

    return list(Group.objects.values_list("name", flat=True))


def test_the_question_of_a_tool_with_a_preview_shows_its_changes_and_accept_makes_them(
    page: ConsolePage, group: str
) -> None:
    page.call("rename", wait=False, old=group, new="staff")
    page.wait_for("document.querySelector('#question form')")
    shown = page.text("#question .asked")
    assert shown.strip() == "Rename clerks?\nThis would\n- change group clerks: name clerks -> staff"
    assert groups() == ["clerks"]
    page.click("#question [value=accept]")
    page.wait_for("document.querySelector('#result .took')")
    assert "renamed to staff" in page.text("#result")
    assert groups() == ["staff"]


def test_a_preview_that_is_declined_changes_nothing(page: ConsolePage, group: str) -> None:
    page.call("rename", wait=False, old=group, new="staff")
    page.wait_for("document.querySelector('#question form')")
    page.click("#question [value=decline]")
    page.wait_for("document.querySelector('#result .took')")
    assert "nothing was done" in page.text("#result")
    assert groups() == ["clerks"]


def reason(page: ConsolePage, text: str) -> None:
    page.wait_for("document.querySelector('#question form')")
    page.run("document.getElementsByName('question-0-arguments-reason')[0].value = text", text=text)
    page.click("#question [value=accept]")


def test_a_question_in_the_middle_of_a_call_is_a_form_and_the_call_goes_on(page: ConsolePage) -> None:
    page.call("interview", wait=False)
    page.wait_for("document.querySelector('#question form')")
    assert "Why?" in page.text("#question .asked")
    assert page.text("#status") == "Waiting for your answer."
    reason(page, "x")
    page.wait_for("document.querySelector('#question .field-error')")
    reason(page, "cold")
    page.wait_for("document.querySelector('#question .asked')?.innerText.includes('Why really?')")
    reason(page, "old")
    page.wait_for("document.querySelector('#result .took')")
    assert "cold, then old" in page.text("#result")
    assert page.text("#question") == ""


def test_questions_at_the_same_time_are_asked_one_after_the_other(page: ConsolePage) -> None:
    page.call("two_at_once", wait=False)
    for question, answer in (("First?", "one"), ("Second?", "two")):
        page.wait_for("document.querySelector('#question .asked')?.innerText.includes(question)", question=question)
        reason(page, f"{answer}!")
    page.wait_for("document.querySelector('#result .took')")
    assert "one! and two!" in page.text("#result")


def test_a_question_in_the_middle_of_a_call_can_be_declined(page: ConsolePage) -> None:
    page.call("interview", wait=False)
    page.wait_for("document.querySelector('#question form')")
    page.click("#question [value=decline]")
    page.wait_for("document.querySelector('#result .took')")
    assert "no reason: decline" in page.text("#result")


def test_a_call_that_waits_for_an_answer_can_be_cancelled(page: ConsolePage) -> None:
    page.call("interview", wait=False)
    page.wait_for("document.querySelector('#question form')")
    page.click("[data-cancel]")
    page.wait_for("document.getElementById('status').innerText === 'Cancelled.'")
    assert page.text("#question") == ""


def test_only_the_user_who_was_asked_can_answer_and_only_while_the_call_waits(site: Site) -> None:
    page = site.page("clerk")
    page.call("interview", wait=False)
    page.wait_for("document.querySelector('#question form')")
    page.log_in("root")  # as if somebody else had learned the number of the question
    page.run("document.getElementsByName('question-0-arguments-reason')[0].value = 'cold'")
    page.click("#question [value=accept]")
    page.wait_for("document.getElementById('status').innerText.includes('no longer waits')")
    assert page.text("#result") == ""


@pytest.mark.parametrize(("tool", "request_"), [("sample", "sampling/createMessage"), ("roots", "roots/list")])
def test_a_request_for_a_model_or_for_folders_is_one_clear_sentence(
    page: ConsolePage, tool: str, request_: str
) -> None:
    page.call(tool)
    assert f"The tool asked its client for {request_}, which is not available here" in page.text("#result .notice")
