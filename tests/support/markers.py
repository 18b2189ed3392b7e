"""Enforces the markers ``process`` and ``serial``, which pyproject.toml explains, and sets the number of workers.

Hooks of pytest; tests/conftest.py imports them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.workermanage import WorkerController

from tests.support.serial_last import SerialLast

SERIAL_TESTS = "serial_tests"
"""The key in a worker's input of xdist: the file for the names of the serial tests."""

STARTING = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
"""Python's audit events."""

_serial_tests = pytest.StashKey[Path]()
_unmarked: list[str] = []
"""The test that runs now, if it is not marked ``process``."""
_fixtures: list[tuple[str, str]] = []
"""The module and name of each fixture that is being set up now, the innermost last; no module in a conftest.py."""
_fixtures_with_a_process: set[tuple[str, str]] = set()
"""Those that have started one, for whichever test."""


def _on_audit(event: str, _: tuple[Any, ...]) -> None:
    if event in STARTING:
        _fixtures_with_a_process.update(_fixtures)
        if _unmarked:
            pytest.fail(f"{_unmarked[0]} starts a process and is not marked with `process`.", pytrace=False)


sys.addaudithook(_on_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if item.get_closest_marker("process") is None:
        _unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    module = fixturedef.func.__module__
    _fixtures.append(("" if module.endswith("conftest") else module, fixturedef.argname))
    try:
        return (yield)
    finally:
        _fixtures.pop()


@pytest.hookimpl(trylast=True)  # when the fixtures are set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _unmarked and isinstance(item, pytest.Function):
        for name in item.fixturenames:
            module = item.module.__name__ if hasattr(item.module, name) else ""
            if (module, name) in _fixtures_with_a_process:
                reason = f"{item.nodeid} uses {name}, which starts a process, and is not marked with `process`."
                pytest.fail(reason, pytrace=False)


# Under pytest-xdist: the number of workers, and the tests marked `serial`


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Iterator[int]:
    """For ``-n auto``: three workers for two CPUs, because tests with processes often wait.

    Without these tests, one worker for each CPU.
    """
    number = yield
    is_given = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return number if is_given or "not process" in config.option.markexpr else (3 * number + 1) // 2


def pytest_configure_node(node: WorkerController) -> None:
    """In the controller, for each worker."""
    node.workerinput[SERIAL_TESTS] = str(_file_of_serial_tests(node.config))


@pytest.hookimpl(tryfirst=True)  # before xdist tells the controller, which then reads the file
def pytest_collection_finish(session: pytest.Session) -> None:
    workerinput = getattr(session.config, "workerinput", None)
    if workerinput is not None:
        serial = [item.nodeid for item in session.items if item.get_closest_marker("serial")]
        Path(workerinput[SERIAL_TESTS]).write_text("\n".join(serial))


def pytest_xdist_make_scheduler(config: pytest.Config) -> SerialLast | None:
    """In the controller."""
    return SerialLast(config, _file_of_serial_tests(config)) if config.getoption("dist") == "worksteal" else None


def _file_of_serial_tests(config: pytest.Config) -> Path:
    if _serial_tests not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="mcp-serving-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[_serial_tests] = Path(folder.name) / "serial"
    return config.stash[_serial_tests]
