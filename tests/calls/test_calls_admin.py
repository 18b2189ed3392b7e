"""Stored calls in the admin, and the command that removes old ones, through Django's test client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from mcp_serving import conf
from mcp_serving.signals import CallRecord, Outcome
from tests.support import in_django

from django.contrib.auth.models import User  # isort: skip - after Django is set up
from django.test import Client  # isort: skip

from mcp_serving.calls.checks import check_users  # isort: skip
from mcp_serving.calls.models import Call  # isort: skip
from mcp_serving.calls.statistics import statistics  # isort: skip
from mcp_serving.calls.writer import _write  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")

LIST = "/admin/mcp_calls/call/"
STATISTICS = f"{LIST}statistics/"


def record(**changes: Any) -> CallRecord:
    fields: dict[str, Any] = {
        "started": datetime.now(UTC),
        "method": "tools/call",
        "name": "search",
        "outcome": Outcome.OK,
        "reason": "",
        "duration": 0.01,
        "thread_wait": 0.0,
        "answer_size": 100,
        "transport": "http",
        "protocol_version": "2026-07-28",
        "request_id": "1",
        "session": None,
        "user": "ann",
        "user_id": str(in_django.user("ann").pk),
        "token": None,
        "client": "claude-code",
        "client_version": "2.1",
        **changes,
    }
    return CallRecord(**fields)


def store(*records: CallRecord, arguments: str = "") -> None:
    _write([(partial(CallRecord._make, each), arguments) for each in records])


@pytest.fixture(autouse=True)
def no_calls(users_of_its_own: None) -> Iterator[None]:
    yield
    Call.objects.all().delete()


@pytest.fixture
def root() -> Client:
    User.objects.filter(username="root").update(is_staff=True)
    client = Client()
    client.force_login(in_django.user("root"))
    return client


def page(client: Client, path: str, /, **parameters: str) -> str:
    response = client.get(path, parameters)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def names_in(html: str) -> set[str]:
    return set(re.findall(r'<td class="field-name">([^<]*)</td>', html))


def test_the_list_shows_the_calls_with_links_to_the_user_and_the_token(root: Client) -> None:
    store(record(token="mcp_abc", outcome=Outcome.FAILED, reason="LookupError"), record(token="https://app.example/id"))
    html = page(root, LIST)
    assert "LookupError" in html
    assert f'<a href="/admin/auth/user/{in_django.user("ann").pk}/change/">ann</a>' in html
    assert '<a href="/admin/mcp_tokens/token/?q=mcp_abc">mcp_abc</a>' in html
    assert '<a href="/admin/mcp_oauth/connectedapp/?q=https%3A%2F%2Fapp.example%2Fid">' in html
    assert "/admin/mcp_tokens/token/?q=mcp_abc" in page(root, f"{LIST}{Call.objects.last().pk}/change/")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "parameters",
    [
        {"name": "wanted"},
        {"user_name": "bob"},
        {"client": "cursor"},
        {"outcome__exact": "failed"},
        {"method__exact": "resources/read"},
        {"q": "wanted"},
        {"q": "LookupError"},
        {"started__year": "2020"},
    ],
    ids=str,
)
def test_filters_search_and_date_hierarchy_find_a_call(root: Client, parameters: dict[str, str]) -> None:
    wanted = record(
        name="wanted",
        user="bob",
        client="cursor",
        outcome=Outcome.FAILED,
        reason="LookupError",
        method="resources/read",
        started=datetime(2020, 5, 1, tzinfo=UTC) if "started__year" in parameters else datetime.now(UTC),
    )
    store(record(), wanted)
    assert names_in(page(root, LIST)) == {"search", "wanted"}
    assert names_in(page(root, LIST, **parameters)) == {"wanted"}


def test_nobody_can_change_or_delete_a_call_and_its_texts_are_escaped(root: Client) -> None:
    store(record(name="<script>alert(1)</script>", client="<b>"), arguments='{"text": "<i>"}')
    (call,) = Call.objects.all()
    for path in (f"{LIST}add/", f"{LIST}{call.pk}/delete/"):
        assert root.post(path, {"post": "yes"}).status_code == 403
    root.post(f"{LIST}{call.pk}/change/", {"name": "other"})
    root.post(LIST, {"action": "delete_selected", "_selected_action": [call.pk], "post": "yes"})
    assert Call.objects.get().name == call.name
    for path in (LIST, f"{LIST}{call.pk}/change/", STATISTICS):
        html = page(root, path)
        assert "<script>alert" not in html
        assert "<i>" not in html
    assert "&lt;i&gt;" in page(root, f"{LIST}{call.pk}/change/")


def test_the_pages_need_the_permission_to_view_calls() -> None:
    User.objects.filter(username="ann").update(is_staff=True)
    client = Client()
    client.force_login(in_django.user("ann"))
    for path in (LIST, STATISTICS):
        assert client.get(path).status_code == 403
    assert Client().get(STATISTICS).status_code == 302


def test_the_statistics_have_counts_error_rates_and_percentiles_for_each_tool_and_day() -> None:
    now = datetime.now(UTC)
    store(*(record(duration=number / 1000) for number in range(1, 101)))
    store(record(name="rare", duration=2.0, outcome=Outcome.FAILED), record(name="rare", outcome=Outcome.REFUSED))
    store(record(started=now - timedelta(days=2), duration=0.5), record(name="old", started=now - timedelta(days=20)))
    search, rare = statistics(7)
    assert [(each.name, each.calls, each.error_rate) for each in (search, rare)] == [
        ("search", 101, 0.0),
        ("rare", 2, 0.5),
    ]
    assert len(search.days) == 7
    today = search.days[-1]
    assert (today.calls, today.p50, today.p95) == (100, 0.05, 0.095)
    assert [day.calls for day in search.days if day.calls] == [1, 100]
    assert {each.name for each in statistics(30)} == {"search", "rare", "old"}


def test_the_page_with_statistics_has_charts_without_scripts(root: Client) -> None:
    assert "No calls." in page(root, STATISTICS)
    store(*(record(duration=number / 1000) for number in range(1, 101)), record(outcome=Outcome.FAILED))
    html = page(root, STATISTICS, days="30")
    assert html.count("<svg role=") == 3
    charts = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "<title>Calls of search per day, " in charts
    assert "style=" not in charts
    assert charts.count("<rect") == 60
    assert "1.0 %" in html
    assert f'href="{LIST}?name=search"' in html
    assert "Calls of the last 7 days" in page(root, STATISTICS, days="<3>")
    assert STATISTICS in page(root, LIST)


def test_a_call_that_the_database_refuses_does_not_lose_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store(record(name="before"), record(name="refused", answer_size=-1), record(name="after"))
    assert set(Call.objects.values_list("name", flat=True)) == {"before", "after"}
    assert "The call of refused cannot be stored" in caplog.text


def test_a_deleted_user_leaves_the_calls_with_the_name() -> None:
    user = User.objects.create_user("leaving")
    store(record(user="leaving", user_id=str(user.pk)))
    user.delete()
    call = Call.objects.get()
    assert (call.user, call.user_name) == (None, "leaving")


@pytest.mark.parametrize(("days", "left"), [(None, ["new", "old"]), (5, ["new"])])
def test_the_command_removes_old_calls(days: int | None, left: list[str]) -> None:
    now = datetime.now(UTC)
    store(
        record(name="new"),
        record(name="old", started=now - timedelta(days=30)),
        record(name="older", started=now - timedelta(days=100)),
    )
    output = StringIO()
    call_command("clearmcpcalls", days=days, stdout=output)
    assert list(Call.objects.order_by("name").values_list("name", flat=True)) == left
    removed = 3 - len(left)
    assert output.getvalue() == f"Removed {removed} {'call' if removed == 1 else 'calls'}.\n"


def test_a_wrong_number_of_days_is_one_clear_line() -> None:
    with pytest.raises(CommandError, match=r"^--days is -1; it has to be a number from 0 to 36500\.$"):
        call_command("clearmcpcalls", days=-1)
    for value in (0, "90", True, 1.5):
        with override_settings(MCP_SERVING={"CALL_RETENTION_DAYS": value}):
            (problem,) = conf.problems()
        assert problem == f"MCP_SERVING['CALL_RETENTION_DAYS']: {value!r} must be a number of days from 1 to 36500."


def test_the_check_names_the_app_that_a_project_without_users_lacks() -> None:
    assert check_users() == []
    with override_settings(AUTH_USER_MODEL="nowhere.User"):
        (error,) = check_users()
    assert error.id == "mcp_calls.E001"
    assert "'nowhere.User' that has not been installed. Add 'django.contrib.auth'" in error.msg
