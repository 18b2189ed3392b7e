"""Previews over real processes, on SQLite, PostgreSQL and MariaDB, in both protocol generations."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult, ResourceUpdatedNotification

from tests.support.harness import DEADLINE, MANAGE, ROOT, environment, parameters, serving_http
from tests.support.mariadb import MariaDB
from tests.support.postgres import PostgreSQL

pytestmark = pytest.mark.process
MODES = ["auto", "legacy"]

PREPARE = """
from django.core.management import call_command
for alias in ("default", "archive"):
    call_command("migrate", run_syncdb=True, verbosity=0, database=alias)
from tests.project.stock.models import *
order = Order.objects.create(number=7)
Order.objects.create(number=8)
for seat in ("A1", "A2", "A3", "A4"):
    Reservation.objects.create(order=order, seat=seat)
Product.objects.create(name="Chair", stock=12)
order.tags.add(Tag.objects.create(name="old"))
Document.objects.create(title="Old plan")
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


DATABASES = ["sqlite", "postgres", "mariadb"]


@pytest.fixture(params=DATABASES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return project_with(databases_of(request.param, request, tmp_path), tmp_path)


_templates: dict[str, dict[str, dict[str, Any]]] = {}
"""For each kind of database: the settings of the migrated databases with the rows."""


def databases_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The settings of migrated databases with the test's rows."""
    server: PostgreSQL | MariaDB | None = request.getfixturevalue(kind) if kind != "sqlite" else None
    if kind not in _templates:
        folder = request.getfixturevalue("tmp_path_factory").mktemp("template")
        empty = sqlite_in(folder) if server is None else server.fresh_databases("default", "archive")
        _templates[kind] = prepared(empty, folder)
    template = _templates[kind]
    if server is not None:
        return server.copies_of(template)
    for each in template.values():
        shutil.copy(each["NAME"], tmp_path)
    return sqlite_in(tmp_path)


def sqlite_in(folder: Path) -> dict[str, dict[str, Any]]:
    engine = "django.db.backends.sqlite3"
    return {name: {"ENGINE": engine, "NAME": str(folder / name)} for name in ("default", "archive")}


def prepared(databases: dict[str, dict[str, Any]], tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Migrate the databases and make the rows; return the settings."""
    command = [*MANAGE, "shell", "--command", PREPARE]
    env = environment(**project_with(databases, tmp_path).env)
    subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
    return databases


def project_with(databases: dict[str, dict[str, Any]], tmp_path: Path) -> Project:
    """The test project on these databases."""
    notes, mail = tmp_path / "notes", tmp_path / "mail"
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_preview",
        "TEST_DATABASES": json.dumps(databases),
        "TEST_NOTES": str(notes),
        "TEST_MAIL": str(mail),
    }
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
async def connected(
    project: Project, mode: str, person: Person | None = None, url: str | None = None
) -> AsyncIterator[Client]:
    """A client over stdio, or of the URL."""
    with anyio.fail_after(2 * DEADLINE):
        async with Client(url or parameters(**project.env), mode=mode, elicitation_callback=person) as client:  # type: ignore[arg-type]
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
        assert "has preview=True, but the database 'default' has no transactions" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_table_of_mysql_without_transactions_is_refused_at_the_start(tmp_path: Path, mariadb: MariaDB) -> None:
    databases = prepared(mariadb.fresh_databases("default", "archive"), tmp_path)
    project = project_with(databases, tmp_path)
    mariadb.execute("CREATE TABLE of_nobody (number int) ENGINE = MyISAM", databases["default"]["NAME"])
    check = [*MANAGE, "check", "--deploy"]
    done = subprocess.run(check, env=environment(**project.env), cwd=ROOT, capture_output=True, text=True)
    assert "has no transactions" not in done.stderr
    mariadb.execute("ALTER TABLE stock_account ENGINE = MyISAM", databases["default"]["NAME"])
    for command in (["runmcp"], ["check", "--deploy"]):
        done = subprocess.run(
            [*MANAGE, *command], env=environment(**project.env), cwd=ROOT, capture_output=True, text=True, input=""
        )
        assert done.returncode != 0
        expected = "has preview=True, but the table 'stock_account' of the database 'default' has no transactions"
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_with_atomic_requests_the_tool_is_committed_once_and_its_mail_leaves_afterwards(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    databases = databases_of(kind, request, tmp_path)
    databases["default"]["ATOMIC_REQUESTS"] = True
    project = project_with(databases, tmp_path)
    person = Person("decline", "accept", "accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert not (await call(client, "announce"))[0]
            assert await call(client, "announce") == (True, "announced")
            assert await call(client, "cancel_order", number=7) == (True, "cancelled 7, released 4")
            assert (await state(client))["tags"] == ["announced", "old"]

    run(work)
    assert project.noted() == ["committed after 0 mails", "preview", "for good", "committed"]
    assert len(project.mails()) == 1


def test_a_serialization_failure_is_reported_and_nothing_is_repeated(tmp_path: Path, postgres: PostgreSQL) -> None:
    databases = postgres.fresh_databases("default", "archive")
    databases["default"]["OPTIONS"] = {"isolation_level": 4}  # psycopg's IsolationLevel.SERIALIZABLE
    project = project_with(prepared(databases, tmp_path), tmp_path)
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
    assert restock == ["- create 2500 products", "- SQL UPDATE stock_product: 1 row"]
    assert orders[0] == "- delete 4 reservations of order 7"
    assert sorted(orders[1:]) == ["- delete order 7", "- delete order 8"]


LINES: dict[str, list[str]] = {
    "f_expressions": ["change product Chair: stock 12 -> 11", "change order 7: number 7 -> 70"],
    "update_or_create": ["change product Chair: stock 12 -> 3", "create product: name Lamp, stock 3"],
    "upsert": ["change order 7: status Open -> Cancelled", "create order: number 9"],
    "ignored_conflicts": ["create 1 order"],
    "signals": ["change product Chair: stock 12 -> 13", "change tag old: name old -> renamed"],
    "savepoints": ["create tag: name kept"],
    "locked_rows": ["change product Chair: stock 12 -> 1"],
    "through_a_model": ["create label: document Old plan, tag old, weight 3"],
    "another_key": ["change 1 document"],
    "async_orm": ["create tag: name async"],
    "language_and_time_zone": ["change order 7: cancelled at (empty) -> 2. März 2026 05:00"],
}


def test_the_lines_describe_what_the_code_of_a_tool_does(project: Project) -> None:
    person = Person(*["decline"] * (len(LINES) + 4))

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            for name in [*LINES, "soft_deletion", "softly_deleted", "odd_values", "raw_sql"]:
                await call(client, "run_case", case=name)
            assert await state(client) == BEFORE

    run(work)
    found = {each.splitlines()[0][4:-1]: [line[2:] for line in each.splitlines()[2:]] for each in person.questions}
    soft, softly, odd, raw = (found.pop(name) for name in ("soft_deletion", "softly_deleted", "odd_values", "raw_sql"))
    assert found == LINES
    assert soft[0].startswith(
        "create document: title Plan, data {'pages': [1, {'of': 'two'}]}, price 12.50, deleted at"
    )
    assert soft[1] == "SQL UPDATE stock_document: 1 row"
    assert softly[0].startswith("change document Old plan: deleted at (empty) -> ")
    assert odd[0].startswith(r"create document: title **b** <i>\x1b[31m This would - delete nothing \u202eend xxx")
    assert odd[0].endswith("…")
    assert odd[1].startswith("change document Old plan: data {} -> {'text': 'yyy")
    assert len(odd[1]) < 200
    assert raw[:2] == ["SQL INSERT stock_tag: 2 rows", "SQL UPDATE stock_product: 1 row"]
    if "postgresql" in project.env["TEST_DATABASES"]:
        assert raw[2:] == [
            "SQL DELETE stock_reservation: 4 rows",
            "SQL UPDATE stock_document: 1 row",
            "SQL CREATE stock_new",
        ]


def test_a_tool_that_ends_its_transaction_fails_in_the_preview_and_nothing_remains(project: Project) -> None:
    person = Person()
    names = ["raw_commit", "raw_rollback", "django_commit", "autocommit", "closed_connection"]
    refused = ["raw_commit", "raw_rollback"]
    if "mysql" in project.env["TEST_DATABASES"]:
        names.append("implicit_commit")
        refused.append("implicit_commit")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            for name in names:
                done, text = await call(client, "run_case", case=name)
                assert not done, name
                if name in refused:
                    assert "ends the transaction, and a tool with preview=True runs in one" in text
            with pytest.raises(MCPError, match="Internal server error"):
                await call(client, "run_case", case="exit_of_the_process")
            assert await state(client) == BEFORE

    run(work)
    assert person.questions == []


def test_thousands_of_rows_are_counted_created_and_deleted_by_a_cascade(project: Project) -> None:
    person = Person("accept", "accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert (await call(client, "run_case", case="bulk"))[0]
            assert (await state(client))["reservations"] == 5004
            assert (await call(client, "run_case", case="cascade"))[0]
            assert (await state(client))["reservations"] == 4

    run(work)
    bulk, cascade = (question.splitlines()[2:] for question in person.questions)
    assert bulk == ["- create 5000 reservations"]
    assert sorted(cascade) == ["- delete 5000 reservations", "- delete order 8"]


def test_keys_that_the_database_gives_and_binary_values_are_no_difference(project: Project) -> None:
    person = Person("accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert (await call(client, "run_case", case="copied_keys"))[0]
            assert (await state(client))["tags"] == ["first", "old", "second"]

    run(work)
    assert "data 6 bytes" in person.questions[0]


@pytest.mark.parametrize("name", ["save_file", "save_file_for_good"])
def test_the_name_of_a_file_is_no_difference(tmp_path: Path, request: pytest.FixtureRequest, name: str) -> None:
    project = project_with(databases_of("sqlite", request, tmp_path), tmp_path)
    person = Person("accept")

    async def work() -> None:
        async with connected(project, "auto", person) as client:
            assert (await call(client, "run_case", case=name))[0]

    run(work)
    assert "file (empty) -> plan" in person.questions[0] or name == "save_file_for_good"


@pytest.mark.parametrize("mode", MODES)
def test_over_http_the_question_shows_the_changes_and_yes_makes_them(
    tmp_path: Path, request: pytest.FixtureRequest, mode: str
) -> None:
    project = project_with(databases_of("sqlite", request, tmp_path), tmp_path)
    person = Person("decline", "accept")

    async def work(url: str) -> None:
        async with connected(project, mode, person, url) as client:
            assert not (await call(client, "cancel_order", number=7))[0]
            assert await state(client) == BEFORE
            assert await call(client, "cancel_order", number=7) == (True, "cancelled 7, released 4")
            assert (await state(client))["stock"] == {"Chair": 16}

    with serving_http(env=project.env) as (_, address):
        anyio.run(work, f"{address}/mcp")
    for question in person.questions:
        assert "- change product Chair: stock 12 -> 16" in question
    assert project.noted() == ["preview", "preview", "for good", "committed"]


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
@pytest.mark.parametrize("mode", MODES)
def test_a_preview_sends_no_notification(tmp_path: Path, request: pytest.FixtureRequest, mode: str) -> None:
    project = project_with(databases_of("sqlite", request, tmp_path), tmp_path)
    person = Person("decline", "accept")
    uris = ["stock://orders/7", "stock://orders/8"]
    updated: list[str] = []
    heard = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            updated.append(str(message.params.uri))
            heard.set()

    async def work() -> None:
        options: dict[str, Any] = {"mode": mode, "elicitation_callback": person, "message_handler": hear}
        with anyio.fail_after(2 * DEADLINE):
            async with Client(parameters(**project.env), **options) as client, AsyncExitStack() as stack:
                if mode == "legacy":
                    for uri in uris:
                        await client.subscribe_resource(uri)
                else:
                    stream = await stack.enter_async_context(client.listen(resource_subscriptions=uris))
                for number in (7, 8):
                    await call(client, "cancel_order", number=number)
                if mode != "legacy":
                    updated.append((await anext(aiter(stream))).uri)  # type: ignore[union-attr]
                    heard.set()
                await heard.wait()

    run(work)
    assert set(updated) == {uris[1]}


def test_the_state_that_travels_to_the_client_does_not_grow_with_the_changes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    project = project_with(databases_of("sqlite", request, tmp_path), tmp_path)

    async def size(client: Client, case: str) -> int:
        asked = await client.session.call_tool("run_case", {"case": case}, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.request_state is not None
        return len(asked.request_state)

    async def work() -> None:
        async with connected(project, "auto", Person()) as client:
            # The question of the one is hundreds of characters longer. A time in the state differs in its digits.
            assert abs(await size(client, "odd_values") - await size(client, "savepoints")) < 32

    run(work)
