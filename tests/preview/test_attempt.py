"""Previews in this process: what is refused where a tool is declared, and what a database may do."""

from __future__ import annotations

import django
import pytest
from django.contrib.auth.models import Group, User
from django.core import mail
from django.db import transaction
from django.test import override_settings

from mcp_serving import MCPServer, Registry, is_preview
from mcp_serving.preview.attempt import attempt

pytestmark = pytest.mark.usefixtures("users_of_its_own")


async def async_tool() -> str:
    return ""


def test_an_async_tool_with_a_preview_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="'async_tool' is async and has preview=True; a preview needs a sync function"):
        MCPServer("x").write_tool(confirm="Really?", preview=True)(async_tool)


def test_an_async_tool_of_a_registry_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="is async and has preview=True"):
        Registry().write_tool(confirm="Really?", preview=True)(async_tool)


def test_a_nested_transaction_that_the_tool_rolls_back_is_not_shown() -> None:
    def tool() -> None:
        try:
            with transaction.atomic():
                Group.objects.create(name="rolled back")
                raise ValueError
        except ValueError:
            Group.objects.create(name="kept")

    assert attempt(tool).lines == ("create group: name kept",)


def test_a_row_that_is_created_and_deleted_is_not_shown() -> None:
    assert attempt(lambda: Group.objects.create(name="gone").delete()).lines == ()


def test_functions_of_on_commit_do_not_run() -> None:
    ran: list[bool] = []
    attempt(lambda: transaction.on_commit(lambda: ran.append(True)))
    assert ran == []


def test_code_can_see_that_it_is_a_preview() -> None:
    seen: list[bool] = []
    shown = attempt(lambda: seen.append(is_preview()))
    attempt(lambda: seen.append(is_preview()), expected=shown.digest)
    assert seen == [True, False]
    assert not is_preview()


def test_a_run_that_does_the_same_is_committed_and_another_is_rolled_back() -> None:
    shown = attempt(lambda: Group.objects.create(name="one"))
    other = attempt(lambda: Group.objects.create(name="two"), expected=shown.digest)
    assert not other.committed
    assert not Group.objects.filter(name="two").exists()
    same = attempt(lambda: Group.objects.create(name="one"), expected=shown.digest)
    assert same.committed
    assert same.result == Group.objects.get(name="one")
    same.result.delete()


def test_passwords_are_hidden_and_do_not_count_as_a_difference() -> None:
    def tool() -> None:
        User.objects.create_user("new", password="secret")  # with another salt each time

    shown = attempt(tool)
    assert "secret" not in "".join(shown.lines)
    assert "password (hidden)" in shown.lines[0]
    assert attempt(tool).digest == shown.digest


def test_a_thousand_rows_are_counted_and_not_read() -> None:
    shown = attempt(lambda: Group.objects.bulk_create(Group(name=f"group {number}") for number in range(1000)))
    assert shown.lines == ("create 1000 groups",)


def test_an_upsert_of_many_rows_does_not_say_that_all_are_new() -> None:
    def tool() -> None:
        Group.objects.bulk_create(Group(name=f"group {number}") for number in range(150, 450))
        rows = [Group(name=f"group {number}") for number in range(450)]
        Group.objects.bulk_create(rows, update_conflicts=True, unique_fields=["name"], update_fields=["name"])

    assert attempt(tool).lines == ("create 300 groups", "create or change 250 groups")


def test_at_most_twenty_lines_are_shown_and_the_rest_is_counted() -> None:
    def tool() -> None:
        for number in range(15):
            group = Group.objects.create(name=f"group {number}")
            User.objects.create(username=f"user {number}").groups.add(group)

    shown = attempt(tool)
    assert len(shown.lines) == 20
    assert shown.lines[-1] == "and 26 more changes"


LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
MAIL_IN_MEMORY = {"EMAIL_BACKEND": LOCMEM} if django.VERSION < (6, 1) else {"MAILERS": {"default": {"BACKEND": LOCMEM}}}


@override_settings(**MAIL_IN_MEMORY)
def test_mail_is_held_back_and_shown() -> None:
    mail.outbox = []
    shown = attempt(lambda: mail.send_mail("subject", "text", "a@example.com", ["b@example.com", "c@example.com"]))
    assert shown.lines == ("send 1 mail to b@example.com, c@example.com",)
    assert mail.outbox == []
    attempt(lambda: mail.send_mail("subject", "text", "a@example.com", ["b@example.com"]))
    assert mail.outbox == []
