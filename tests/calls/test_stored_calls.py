"""``mcp_serving.calls`` in real processes: what is stored, and what happens while the database is unavailable."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import psycopg
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.harness import (
    DEADLINE,
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    ROOT,
    Notes,
    Process,
    call,
    environment,
    runmcp,
    serving_http,
    wait_until,
)
from tests.support.postgres import PostgreSQL

pytestmark = pytest.mark.process


class Site:
    """A project with the app, whose database can be made unavailable."""

    def __init__(self, postgres: PostgreSQL, notes: Notes, **options: Any) -> None:
        self._postgres = postgres
        databases = postgres.fresh_databases("default")
        databases["default"].update(options)
        self._settings = databases["default"]
        self.env = {
            "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_calls",
            "TEST_DATABASES": json.dumps(databases),
            "TEST_SQLITE": "",
            "TEST_RECORDS": "0",
            **notes.env,
        }
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [*MANAGE, *arguments], env=environment(**self.env), cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        settings = self._settings
        with psycopg.connect(
            host=settings["HOST"],
            port=settings["PORT"],
            user=settings["USER"],
            dbname=settings["NAME"],
            application_name="tests",
        ) as connection:
            return connection.execute(sql).fetchall()  # type: ignore[call-overload, no-any-return]

    def stored(self, number: int, columns: str = "name, outcome") -> list[tuple[Any, ...]]:
        """This many calls, once they are stored."""
        sql = f"SELECT {columns} FROM mcp_calls_call ORDER BY started, id"
        wait_until(lambda: len(self.query(sql)) >= number, f"{number} stored calls; stored: {self.query(sql)}")
        found = self.query(sql)
        assert len(found) == number
        return found

    def go_down(self) -> None:
        name = self._settings["NAME"]
        self._postgres.control.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self._postgres.control.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname='{name}'")

    def come_up(self) -> None:
        self._postgres.control.execute(f"ALTER DATABASE {self._settings['NAME']} ALLOW_CONNECTIONS true")


@pytest.fixture
def site(postgres: PostgreSQL, notes: Notes) -> Iterator[Site]:
    site = Site(postgres, notes)
    yield site
    site.come_up()


def answered(process: Process, number: int, tool: str = "add", **arguments: Any) -> None:
    process.send(call(number, tool, **(arguments or {"a": 1, "b": 2})))
    answer = process.receive()
    assert answer["id"] == number
    assert "isError" not in answer["result"] or not answer["result"]["isError"]


def test_calls_over_both_transports_are_stored_with_their_user_when_the_process_has_ended(site: Site) -> None:
    site.manage("shell", "--command", "from django.contrib.auth.models import User; User.objects.create_user('ann')")

    async def work(address: str) -> None:
        for mode in ("auto", "legacy"):
            async with (
                httpx2.AsyncClient(headers={"X-User": "ann"}, timeout=DEADLINE) as http,
                Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as client,
            ):
                await client.call_tool("add", {"a": 1, "b": 2})

    with serving_http(env=site.env) as (process, address):
        anyio.run(work, address)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    with runmcp("--user", "ann", env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        answered(process, 1)
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
    (ann,) = site.query("SELECT id FROM auth_user")
    # At once: the end of a process waits until its calls are stored.
    rows = site.query(
        "SELECT name, outcome, user_id, user_name, transport, protocol_version FROM mcp_calls_call ORDER BY started"
    )
    assert rows == [
        ("add", "ok", ann[0], "ann", "http", "2026-07-28"),
        ("add", "ok", ann[0], "ann", "http", "2025-11-25"),
        ("add", "ok", ann[0], "ann", "stdio", "2025-11-25"),
    ]


def test_arguments_are_stored_only_for_a_tool_that_says_so_and_without_what_it_names(site: Site) -> None:
    with runmcp(env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        answered(process, 1)
        answered(process, 2, "pay", card="4242", amount=7, note="\0 für", Card="4242")
        answered(process, 3, "pay", card="4242", amount=7, note="x" * 10_000)
        found = site.stored(3, "arguments")
    assert found[0] == ("",)
    assert json.loads(found[1][0])["amount"] == 7
    assert "für" in found[1][0]
    assert len(found[2][0]) < 5000
    assert not any("4242" in arguments for (arguments,) in found)


def test_while_the_database_is_unavailable_calls_are_answered_and_stored_later(site: Site) -> None:
    with runmcp(env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        answered(process, 1)
        site.stored(1)
        site.go_down()
        for number in range(2, 5):
            answered(process, number)
        process.wait_for("Records of calls cannot be delivered, which is retried: ")
        answered(process, 5)
        site.come_up()
        assert site.stored(5, "request_id") == [(str(number),) for number in range(1, 6)]
        assert process.errors.count("cannot be delivered") == 1


def test_a_kept_connection_is_used_again_and_replaced_after_the_database_has_ended_it(
    postgres: PostgreSQL, notes: Notes
) -> None:
    site = Site(postgres, notes, CONN_MAX_AGE=60)
    of_the_process = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'tests' "
        "AND backend_type = 'client backend'"
    )
    with runmcp(env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        answered(process, 1)
        site.stored(1)
        # Connections that were closed just before are still listed for a moment.
        wait_until(lambda: len(site.query(of_the_process)) == 1, "one connection of the process")
        (connection,) = site.query(of_the_process)
        answered(process, 2)
        site.stored(2)
        assert site.query(of_the_process) == [connection]
        site.query(f"SELECT pg_terminate_backend({connection[0]})")
        answered(process, 3)
        site.stored(3)
        assert connection not in site.query(of_the_process)
    assert "cannot be delivered" not in process.errors


def test_a_shutdown_without_the_database_is_not_held_up_and_says_how_many_are_lost(site: Site) -> None:
    with runmcp("--shutdown-timeout", "30", env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        site.go_down()
        answered(process, 1)
        answered(process, 2)
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert "Lost at the shutdown, because they were not delivered in time: records of calls (2)." in process.errors


def test_a_worker_without_the_tables_says_so_and_answers_its_calls(site: Site) -> None:
    site.manage("migrate", "mcp_calls", "zero", "--verbosity", "0")
    with runmcp(env=site.env) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.receive()
        answered(process, 1)
        process.wait_for('cannot be delivered, which is retried: relation "mcp_calls_call" does not exist')
        answered(process, 2)
        site.manage("migrate", "--verbosity", "0")
        site.stored(2)


STATISTICS = """
from datetime import datetime, UTC
from mcp_serving.calls.models import Call
from mcp_serving.calls.statistics import statistics
texts = {each.name: "x" for each in Call._meta.fields if each.get_internal_type() in ("CharField", "TextField")}
for number in range(1, 101):
    texts["outcome"] = "failed" if number > 98 else "ok"
    Call.objects.create(started=datetime.now(UTC), duration=number / 1000, thread_wait=0, answer_size=1, **texts)
(found,) = statistics(7)
print(found.calls, found.error_rate, max(day.p50 or 0 for day in found.days), max(day.p95 or 0 for day in found.days))
"""


def test_the_statistics_are_computed_by_postgresql_too(site: Site) -> None:
    assert site.manage("shell", "--verbosity", "0", "--command", STATISTICS) == "100 0.02 0.05 0.095\n"
