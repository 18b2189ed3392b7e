"""The markers `process` and `serial` do what they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.harness import ROOT, environment, running

pytestmark = pytest.mark.process

SERIAL = """
import os
import pytest

@pytest.fixture(scope="session", autouse=True)
def worker():
    yield
    note("has ended")

def note(word):
    with open("notes", "a") as notes:
        notes.write(f"{os.environ['PYTEST_XDIST_WORKER']} {word}\\n")

@pytest.mark.serial
@pytest.mark.parametrize("number", range(3))
def test_serial(number):
    note("serial")

@pytest.mark.parametrize("number", range(6))
def test_other(number):
    note("other")
"""

PROCESSES = """
import subprocess
import pytest

@pytest.fixture(scope="module")
def child():
    subprocess.run("true")

@pytest.mark.process
def test_with_the_marker(child):
    subprocess.run("true")

def test_without_the_marker():
    subprocess.run("true")

def test_that_shares_the_process_of_another(child):
    pass

def test_without_a_process():
    pass
"""


def run_tests(folder: Path, tests: str, *options: str) -> tuple[int, str]:
    """The exit status and the output of pytest."""
    (folder / "conftest.py").write_text("from tests.support.markers import *\n")
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *options]
    with running([*command, "test_it.py"], env=environment(), cwd=folder) as process:
        output = process.output().decode()
        return process.wait(), output


def test_serial_tests_run_in_one_worker_after_all_other_workers_have_ended(tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, SERIAL, "-n", "2", "--dist", "worksteal")
    assert status == 0, output
    assert re.fullmatch(r"=+ 9 passed in .* =+", output.splitlines()[-1])
    notes = (tmp_path / "notes").read_text().splitlines()
    last = notes[-1].split()[0]
    assert sum(note.endswith(" other") for note in notes) == 6
    assert notes[-4:] == [f"{last} serial"] * 3 + [f"{last} has ended"]
    assert [note for note in notes if not note.startswith(last)][-1].endswith(" has ended")


def test_a_test_that_starts_a_process_without_the_marker_fails_and_the_message_names_the_marker(tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, PROCESSES)
    assert status == 1
    unmarked = "test_it.py::test_without_the_marker"
    assert f"\n{unmarked} starts a process and is not marked with `process`." in output
    sharing = "test_it.py::test_that_shares_the_process_of_another"
    assert f"\n{sharing} uses child, which starts a process, and is not marked with `process`." in output
    assert "1 failed, 2 passed, 1 error" in output.splitlines()[-1]


def test_without_the_tests_that_are_marked_no_process_starts(tmp_path: Path) -> None:
    status, output = run_tests(tmp_path, PROCESSES, "-m", "not process")
    assert status == 1
    assert "1 failed, 1 passed, 1 deselected, 1 error" in output.splitlines()[-1]
