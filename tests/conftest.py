from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import in_django  # sets Django up, for the tests that need no process
from tests.support.fork_server import fork_instead_of_exec
from tests.support.harness import ROOT, Notes
from tests.support.mariadb import MariaDB, running_mariadb
from tests.support.markers import (
    pytest_collection_finish,
    pytest_configure_node,
    pytest_fixture_setup,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)
from tests.support.postgres import PostgreSQL, running_postgresql
from tests.support.private_redis import Redis, running_redis

if TYPE_CHECKING:
    from tests.support.access_servers import AccessServers

__all__ = [
    "pytest_collection_finish",
    "pytest_configure_node",
    "pytest_fixture_setup",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

# In the background of a script, and under nohup, these signals are ignored, also in every child process. `runmcp`
# leaves an ignored signal ignored. The tests need processes that get it.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number is signal.SIGHUP else signal.default_int_handler)

if os.environ.get("FORK_SERVER") != "0":
    fork_instead_of_exec()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture(scope="session")
def shop_template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the example project, with a database that has the demo data and is not changed."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "EXAMPLE_DB": str(tmp_path_factory.mktemp("shop") / "db.sqlite3"),
    }
    env.pop("MCP_TRANSPORT", None)
    for command in (["migrate", "--verbosity", "0"], ["create_demo_data"]):
        subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=env, check=True, capture_output=True)
    return env


@pytest.fixture
def shop(shop_template: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the example project, with a database of its own: several tests cancel orders."""
    database = tmp_path_factory.mktemp("shop") / "db.sqlite3"
    shutil.copy(shop_template["EXAMPLE_DB"], database)
    return {**shop_template, "EXAMPLE_DB": str(database)}


@pytest.fixture(scope="session")
def users() -> Iterator[None]:
    """The users of tests/support/in_django.py."""
    in_django.create_users()
    yield
    in_django.close_connections()


@pytest.fixture(scope="module")
def users_of_its_own(users: None) -> Iterator[None]:
    """For a module that creates or changes users: its changes are undone at its end."""
    yield
    in_django.restore_users()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, users: None) -> Iterator[AccessServers]:
    """A process with handlers of different access options; see tests/project/access_asgi.py."""
    from tests.support.access_servers import AccessServers, serving_access_servers

    notes = tmp_path_factory.mktemp("site") / "notes"
    with serving_access_servers("runmcp", notes) as (process, address):
        yield AccessServers(process, address, notes)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    """A PostgreSQL that the tests start."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB that the tests start."""
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """A Redis that the tests start."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_of_its_own() -> Iterator[Redis]:
    """A second Redis, for a test that stops it."""
    with running_redis() as server:
        yield server
