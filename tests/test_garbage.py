"""Python's garbage collector in a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from mcp_serving.garbage import IMPORT_THRESHOLD, THRESHOLDS, imports_unvisited, rare_collections
from tests.support.harness import INITIALIZE, INITIALIZED, call, runmcp, text_of


@pytest.mark.process
def test_the_garbage_collector_runs_less_often_under_runmcp() -> None:
    with runmcp() as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "collector_thresholds"))
        process.receive()
        assert text_of(process.receive()) == str([*THRESHOLDS])


@pytest.fixture
def collector() -> Iterator[None]:
    """Restores the collector after a test."""
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [
        ((700, 10, 10), THRESHOLDS),
        ((50_000, 1, 30), (50_000, 10, 30)),
        ((0, 10, 10), (0, 10, 10)),  # the project has switched it off
    ],
)
def test_larger_thresholds_of_the_project_are_kept(
    before: tuple[int, int, int], meanwhile: tuple[int, int, int]
) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        assert gc.get_threshold() == meanwhile
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("collector")
def test_imports_start_no_collection_and_no_later_one_visits_their_objects() -> None:
    gc.set_threshold(700, 10, 10)
    with imports_unvisited():
        assert gc.get_threshold() == (IMPORT_THRESHOLD, 10, 10)
        imported: list[object] = []
    assert gc.get_threshold() == (700, 10, 10)
    assert not any(visited is imported for visited in gc.get_objects())


@pytest.mark.usefixtures("collector")
def test_a_collector_that_the_project_sets_while_it_is_imported_stays_so() -> None:
    gc.set_threshold(700, 10, 10)
    with imports_unvisited():
        gc.set_threshold(5_000, 20, 20)
    assert gc.get_threshold() == (5_000, 20, 20)
    gc.disable()
    with imports_unvisited():
        assert gc.get_threshold() == (5_000, 20, 20)
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_after_an_import_that_fails_the_collector_is_as_before() -> None:
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    with pytest.raises(ImportError), imports_unvisited():
        raise ImportError
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0
