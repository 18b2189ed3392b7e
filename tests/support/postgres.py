"""A PostgreSQL of the tests' own: started from the machine's programs, on the loopback interface, in a temporary
folder, and gone with the tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import psycopg

from tests.support.harness import DEADLINE, must_be_installed, reserved_port, unprivileged, wait_until_answered

LATCH = 4711
"""The advisory lock that holds up queries: see ``PostgreSQL.latched``."""

MOST_CONNECTIONS = 300
OF_THE_PROJECT = "datname = 'project' AND backend_type = 'client backend' AND application_name <> 'tests'"


class PostgreSQL:
    """The server, seen from outside the process under test."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._numbers = count()
        with self._connect("postgres") as first:
            first.execute("CREATE DATABASE project")
        with self._connect("project") as setup:
            setup.execute("CREATE TABLE things_thing (id bigserial PRIMARY KEY, name text NOT NULL)")
            setup.execute("INSERT INTO things_thing (name) VALUES ('the one')")
        self.control = self._connect("postgres")

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="tests",
            dbname=database,
            application_name="tests",
            autocommit=True,
        )

    def close(self) -> None:
        self.control.close()

    def fresh_databases(self, *aliases: str) -> dict[str, dict[str, Any]]:
        """Django's settings for empty databases, one for each alias."""
        found = {}
        for alias in aliases:
            name = f"fresh_{next(self._numbers)}"
            self.control.execute(f"CREATE DATABASE {name}")
            found[alias] = {**self._settings, "NAME": name}
        return found

    def copies_of(self, databases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Django's settings for copies of these databases. Nobody may be connected to the originals."""
        found = {}
        for alias, template in databases.items():
            name = f"fresh_{next(self._numbers)}"
            self.control.execute(f"CREATE DATABASE {name} TEMPLATE {template['NAME']}")
            found[alias] = {**template, "NAME": name}
        return found

    @property
    def _settings(self) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": self.port, "USER": "tests"}

    def env(self, **options: Any) -> dict[str, str]:
        """The environment for a project whose default database this is, with more of its settings."""
        default = {**self._settings, "NAME": "project", **options}
        return {
            "TEST_DATABASES": json.dumps({"default": default}),
            "TEST_APPS": '["django.contrib.contenttypes", "django.contrib.auth", "tests.project.things"]',
            "TEST_MCP_SERVING": json.dumps(
                {"SERVER": "tests.project.orm.server", "HTTP_SERVER": "tests.project.orm.build_daphne"}
            ),
        }

    # What the project under test has open

    def connections(self, condition: str = "true") -> int:
        """How many connections the project has."""
        row = self.control.execute(
            f"SELECT count(*) FROM pg_stat_activity WHERE {OF_THE_PROJECT} AND {condition}"
        ).fetchone()
        assert row is not None
        number: int = row[0]
        return number

    async def reaches(self, number: int, condition: str = "true", within: float = DEADLINE) -> None:
        """Wait until the project has exactly this many connections."""
        end = time.monotonic() + within
        while (now := self.connections(condition)) != number:
            assert time.monotonic() < end, f"{now} connections, and not {number}, after {within} s"
            await anyio.sleep(0.01)

    async def held_up(self, number: int) -> None:
        """Wait until exactly this many queries wait for the latch."""
        await self.reaches(number, "wait_event = 'advisory'")

    async def end_connections(self) -> int:
        """End every connection of the project, as a restart of the database does; how many there were."""
        ended = self.control.execute(
            f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OF_THE_PROJECT}"
        ).fetchall()
        pids = ", ".join(str(pid) for pid, _ in ended) or "NULL"
        await self.reaches(0, f"pid IN ({pids})")  # not "none at all": a pool opens new ones by itself
        return len(ended)

    @contextmanager
    def latched(self) -> Iterator[None]:
        """Hold up the queries that ask for the latch, until the block is left."""
        with self._connect("project") as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [LATCH])
            yield

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Hold a lock on each row of a table, until the block is left."""
        with self._connect("project") as holder, holder.transaction():
            holder.execute(f"SELECT 1 FROM {table} FOR UPDATE")
            yield

    def rows(self, name: str) -> int:
        """How many rows of this name the project has committed."""
        with self._connect("project") as look:
            row = look.execute("SELECT count(*) FROM things_thing WHERE name = %s", [name]).fetchone()
        assert row is not None
        number: int = row[0]
        return number


def _program(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


@contextmanager
def running_postgresql() -> Iterator[PostgreSQL]:
    """A fresh PostgreSQL; skips the test only where there is none and it cannot be installed."""
    initdb, server = _program("initdb"), _program("postgres")
    if initdb is None or server is None:
        must_be_installed("The programs of PostgreSQL are missing: apt-get install postgresql.")
    user = unprivileged("PostgreSQL", "postgres", "nobody")
    folder = Path(tempfile.mkdtemp(prefix="mcp-serving-postgresql-"))
    try:
        if user:
            os.chown(folder, user["user"], user["group"])
        data = folder / "data"
        subprocess.run(
            [initdb, "--pgdata", data, "--username", "tests", "--auth", "trust", "--no-sync", "--encoding", "UTF8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **user,
        )
        with reserved_port() as port, _serving(server, data, port, user):
            postgres = PostgreSQL(port)
            try:
                yield postgres
            finally:
                postgres.close()
    finally:
        shutil.rmtree(folder)


@contextmanager
def _serving(server: str, data: Path, port: int, user: dict[str, Any]) -> Iterator[None]:
    options = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": MOST_CONNECTIONS,
        "fsync": "off",
        "autovacuum": "off",
    }
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    log = data.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [server, "-D", data, *settings], stdout=output, stderr=output, cwd=data.parent, **user
        )

    def connect() -> None:
        psycopg.connect(host="127.0.0.1", port=port, user="tests", dbname="postgres", connect_timeout=5).close()

    try:
        wait_until_answered(connect, psycopg.OperationalError, process, "PostgreSQL", log)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # a fast shutdown: it ends the connections, and then itself
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
