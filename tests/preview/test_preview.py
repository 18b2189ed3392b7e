"""Previews over real processes, on SQLite and on PostgreSQL, in both protocol generations."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from tests.support.harness import DEADLINE, MANAGE, ROOT, environment, parameters
from tests.support.postgres import PostgreSQL

pytestmark = pytest.mark.process
MODES = ["auto", "legacy"]

SEED = """
from tests.project.stock.models import *
for model in (Entry, Reservation, Order, Tag, Product, Account):
    model.objects.all().delete()
order = Order.objects.create(number=7)
Order.objects.create(number=8)
for seat in ("A1", "A2", "A3", "A4"):
    Reservation.objects.create(order=order, seat=seat)
Product.objects.create(name="Chair", stock=12)
order.tags.add(Tag.objects.create(name="old"))
"""


@dataclass
class Project:
    """The test project with its databases migrated and its rows made."""

    env: dict[str, str]
    notes: Path
    mail: Path

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def mails(self) -> list[str]:
        return [path.read_text() for path in self.mail.iterdir()] if self.mail.exists() else []


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    if request.param == "sqlite":
        engine = {"ENGINE": "django.db.backends.sqlite3"}
        databases = {name: {**engine, "NAME": str(tmp_path / name)} for name in ("default", "archive")}
    else:
        postgres: PostgreSQL = request.getfixturevalue("postgres")
        databases = postgres.fresh_databases("default", "archive")
    return prepared(databases, tmp_path)


def prepared(databases: dict[str, dict[str, Any]], tmp_path: Path) -> Project:
    """The test project with these databases migrated, and its rows made."""
    notes, mail = tmp_path / "notes", tmp_path / "mail"
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_preview",
        "TEST_DATABASES": json.dumps(databases),
        "TEST_NOTES": str(notes),
        "TEST_MAIL": str(mail),
    }
    for command in (
        ["migrate", "--run-syncdb", "--verbosity", "0"],
        ["migrate", "--run-syncdb", "--verbosity", "0", "--database", "archive"],
        ["shell", "--command", SEED],
    ):
        subprocess.run([*MANAGE, *command], env=environment(**env), cwd=ROOT, check=True, capture_output=True)
    return Project(env, notes, mail)


class Person:
    """The user: remembers the questions, and may change data while one waits."""

    def __init__(self, *actions: str, meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self._actions = list(actions)
        self._meanwhile = meanwhile
        self.questions: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        if self._meanwhile is not None:
            await self._meanwhile()
        action: Any = self._actions.pop(0)
        return ElicitResult(action=action, content={} if action == "accept" else None)


@asynccontextmanager
async def connected(project: Project, mode: str, person: Person | None = None) -> AsyncIterator[Client]:
    with anyio.fail_after(2 * DEADLINE):
        async with Client(parameters(**project.env), mode=mode, elicitation_callback=person) as client:  # type: ignore[arg-type]
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether it succeeded, and its text."""
    result = await client.call_tool(tool, arguments)
    return not result.is_error, result.content[0].text  # type: ignore[union-attr]


async def state(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await call(client, "state"))[1])
    return found


BEFORE = {
    "orders": {"7": "open", "8": "open"},
    "reservations": 4,
    "stock": {"Chair": 12},
    "products": 1,
    "accounts": 0,
    "entries": 0,
    "tags": ["old"],
}


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    anyio.run(work)


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_with_a_preview_counts_once_for_both_runs(project: Project, mode: str) -> None:
    async def work() -> None:
        async with connected(project, mode, Person("accept", "accept")) as client:
            assert await call(client, "once_an_hour") == (True, "renamed")
            succeeded, told = await call(client, "once_an_hour")
            assert not succeeded
            assert told.startswith("once_an_hour: Too many calls: 1 per hour are allowed.")

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_the_question_shows_each_change_and_yes_makes_exactly_these(project: Project, mode: str) -> None:
    person = Person("accept")

    async def work() -> None:
        async with connected(project, mode, person) as client:
            assert await call(client, "cancel_order", number=7) == (True, "cancelled 7, released 4")
            assert await state(client) == {
                **BEFORE,
                "orders": {"7": "cancelled", "8": "open"},
                "reservations": 0,
                "stock": {"Chair": 16},
                "entries": 1,
            }

    run(work)
    (question,) = person.questions
    lines = question.splitlines()
    assert lines[:2] == ["Cancel order 7?", "This would"]
    assert lines[2].startswith("- change order 7: status Open -> Cancelled, cancelled at (empty) -> ")
    assert lines[3:] == [
        "- delete 4 reservations of order 7",
        "- change product Chair: stock 12 -> 16",
        "- create entry: text cancelled 7",
    ]
    assert project.noted() == ["preview", "for good", "committed"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("mode", MODES)
def test_after_no_nothing_of_the_preview_remains(project: Project, mode: str, action: str) -> None:
    person = Person(action)

    async def work() -> None:
        async with connected(project, mode, person) as client:
            done, text = await call(client, "cancel_order", number=7)
            assert not done
            assert "nothing was done" in text
            assert await state(client) == BEFORE

    run(work)
    assert project.noted() == ["preview"]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_fails_in_its_preview_asks_nothing(project: Project, mode: str) -> None:
    person = Person()

    async def work() -> None:
        async with connected(project, mode, person) as client:
            done, text = await call(client, "fail")
            assert not done
            assert "There is no stock." in text
            assert await state(client) == BEFORE

    run(work)
    assert person.questions == []


@pytest.mark.parametrize("mode", MODES)
def test_if_the_data_changes_before_the_answer_the_user_is_asked_again(project: Project, mode: str) -> None:
    async def change() -> None:
        if len(person.questions) == 1:
            async with connected(project, "auto") as other:
                await call(other, "change_stock", stock=20)

    person = Person("accept", "accept", meanwhile=change)

    async def work() -> None:
        async with connected(project, mode, person) as client:
            assert (await call(client, "cancel_order", number=7))[0]
            assert (await state(client))["stock"] == {"Chair": 24}

    run(work)
    first, second = person.questions
    assert "stock 12 -> 16" in first
    assert "stock 20 -> 24" in second
    assert "changed since" in second


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_never_does_the_same_twice_is_refused_after_three_questions(project: Project, mode: str) -> None:
    person = Person(*["accept"] * 4)

    async def work() -> None:
        async with connected(project, mode, person) as client:
            done, text = await call(client, "count_up")
            assert not done
            assert "nothing was done" in text
            assert await state(client) == BEFORE

    run(work)
    assert len(person.questions) == 3


def test_a_database_without_transactions_is_refused_at_the_start_and_by_the_checks(tmp_path: Path) -> None:
    database = {"ENGINE": "tests.project.no_transactions", "NAME": str(tmp_path / "db")}
    env = environment(
        DJANGO_SETTINGS_MODULE="tests.project.settings_with_preview",
        TEST_DATABASES=json.dumps({"default": database}),
        TEST_MAIL=str(tmp_path),
    )
    for command in (["runmcp"], ["check", "--deploy"]):
        done = subprocess.run([*MANAGE, *command], env=env, cwd=ROOT, capture_output=True, text=True, input="")
        assert done.returncode != 0
        assert "'cancel_order' has preview=True, but the database 'default' has no transactions" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_serialization_failure_is_reported_and_nothing_is_repeated(tmp_path: Path, postgres: PostgreSQL) -> None:
    databases = postgres.fresh_databases("default", "archive")
    databases["default"]["OPTIONS"] = {"isolation_level": 4}  # psycopg's IsolationLevel.SERIALIZABLE
    project = prepared(databases, tmp_path)
    person = Person("accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            done, _ = await call(client, "conflict")
            assert not done
            assert (await state(client))["stock"] == {"Chair": 100}

    run(work)
    assert person.questions == []
    assert project.noted() == ["conflict"]


def test_a_tool_that_changes_nothing_says_so(project: Project) -> None:
    person = Person("accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert await call(client, "do_nothing") == (True, "nothing")

    run(work)
    assert person.questions == ["Do nothing?\nThis would change nothing."]


def test_mail_is_shown_in_the_preview_and_sent_once_after_yes(project: Project) -> None:
    person = Person("accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert await call(client, "invite", name="ann") == (True, "invited ann")
            assert (await state(client))["accounts"] == 1

    run(work)
    (question,) = person.questions
    assert question.splitlines()[2:] == [
        "- create account: name ann, api key (hidden), nickname (hidden)",
        "- send 1 mail to ann@example.com",
    ]
    assert len(project.mails()) == 1


def test_many_to_many_changes_bulk_statements_and_raw_sql_are_shown(project: Project) -> None:
    person = Person("decline", "decline", "decline")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            await call(client, "tag_order", number=7, names=["new"])
            await call(client, "restock", rows=2500)
            await call(client, "delete_orders")
            assert await state(client) == BEFORE

    run(work)
    tags, restock, orders = (question.splitlines()[2:] for question in person.questions)
    assert tags == ["- create tag: name new", "- remove tag old from order 7", "- add the new tag to order 7"]
    assert restock == ["- create 2500 products", "- SQL UPDATE of table stock_product: 1 row"]
    assert orders[0] == "- delete 4 reservations of order 7"
    assert sorted(orders[1:]) == ["- delete order 7", "- delete order 8"]
