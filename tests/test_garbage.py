"""Python's garbage collector in a process that serves."""

from __future__ import annotations

import gc

import pytest

from mcp_serving.garbage import THRESHOLDS, rare_collections
from tests.support.harness import INITIALIZE, INITIALIZED, call, runmcp, text_of


@pytest.mark.process
def test_the_garbage_collector_runs_less_often_under_runmcp() -> None:
    with runmcp() as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "collector_thresholds"))
        process.receive()
        assert text_of(process.receive()) == str([*THRESHOLDS])


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
    ours = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        with rare_collections():
            assert gc.get_threshold() == meanwhile
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*ours)
