"""A MariaDB of the tests' own: started from the machine's programs, on the loopback interface, in a temporary folder,
and gone with the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from tests.support.harness import must_be_installed, reserved_port, unprivileged, wait_until_answered


class MariaDB:
    """The server, seen from outside the process under test."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._numbers = count()

    def execute(self, statement: str, database: str | None = None) -> None:
        with self._cursor(database) as cursor:
            cursor.execute(statement)

    @contextmanager
    def _cursor(self, database: str | None = None) -> Iterator[Cursor]:
        connection = pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, connect_timeout=5
        )
        with connection, connection.cursor() as cursor:
            yield cursor

    def fresh_databases(self, *aliases: str) -> dict[str, dict[str, Any]]:
        """Django's settings for empty databases, one for each alias."""
        found = {}
        for alias in aliases:
            name = f"fresh_{next(self._numbers)}"
            self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            found[alias] = {
                "ENGINE": "django.db.backends.mysql",
                "HOST": "127.0.0.1",
                "PORT": self.port,
                "USER": "root",
                "NAME": name,
            }
        return found

    def copies_of(self, databases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Django's settings for copies of these databases."""
        found = self.fresh_databases(*databases)
        for alias, template in databases.items():
            original = template["NAME"]
            with self._cursor(found[alias]["NAME"]) as cursor:
                cursor.execute("SET FOREIGN_KEY_CHECKS = 0")
                cursor.execute(f"SHOW TABLES FROM {original}")
                for (table,) in cursor.fetchall():
                    cursor.execute(f"SHOW CREATE TABLE {original}.{table}")
                    (row,) = cursor.fetchall()
                    cursor.execute(row[1])
                    cursor.execute(f"INSERT INTO {table} SELECT * FROM {original}.{table}")
        return found


@contextmanager
def running_mariadb() -> Iterator[MariaDB]:
    """A fresh MariaDB; skips the test only where there is none and it cannot be installed."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin"
    install, server = shutil.which("mariadb-install-db", path=search), shutil.which("mariadbd", path=search)
    if install is None or server is None:
        must_be_installed("The programs of MariaDB are missing: apt-get install mariadb-server.")
    user = unprivileged("MariaDB", "mysql", "nobody")
    folder = Path(tempfile.mkdtemp(prefix="mcp-serving-mariadb-"))
    try:
        if user:
            os.chown(folder, user["user"], user["group"])
        data = folder / "data"
        subprocess.run(
            [
                install,
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            **user,
        )
        with reserved_port() as port, _serving(server, data, port, user):
            yield MariaDB(port)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _serving(server: str, data: Path, port: int, user: dict[str, Any]) -> Iterator[None]:
    options = {
        "datadir": data,
        "bind-address": "127.0.0.1",
        "port": port,
        "socket": data.parent / "socket",
        "pid-file": data.parent / "pid",
        "innodb-flush-log-at-trx-commit": 0,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    log = data.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [server, "--no-defaults", *arguments], stdout=output, stderr=output, cwd=data.parent, **user
        )
    try:
        ask = partial(MariaDB(port).execute, "SELECT 1")
        wait_until_answered(ask, pymysql.err.OperationalError, process, "MariaDB", log)
        yield
    finally:
        process.kill()  # nothing of it is needed any more
        process.wait()
