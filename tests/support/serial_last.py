"""For ``pytest -n``: the tests marked ``serial`` run after all others, one after another, in one worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import WorkStealingScheduling

AT_LEAST = 2
"""Tests that a worker has to know before it runs the first of them; see xdist's WorkStealingScheduling."""


class SerialLast(WorkStealingScheduling):
    """As ``--dist worksteal``, but the serial tests wait until all workers except one have ended.

    Args:
        names: a file in which each worker writes the names of the serial tests while it collects.
    """

    def __init__(self, config: pytest.Config, names: Path) -> None:
        super().__init__(config)
        self._names = names
        self._serial: list[int] | None = None
        """The serial tests that are in no worker's queue yet; None until the tests are collected."""

    @property
    def tests_finished(self) -> bool:
        return not self._serial and super().tests_finished

    @property
    def has_pending(self) -> bool:
        return bool(self._serial) or super().has_pending

    def check_schedule(self) -> None:
        if self._serial is None and self.collection:
            self._set_serial_tests_aside(self.collection)
        if self._serial and not self.pending and self.steal_requested_from_node is None:
            working = [node for node in self.nodes if not node.shutting_down]
            if all(len(self.node2pending[node]) < AT_LEAST for node in working):
                for node in working[1:]:
                    node.shutdown()
                if len(self.nodes) > 1:
                    return  # called again when a worker has ended
                self.pending, self._serial = self._serial, []
        super().check_schedule()

    def _set_serial_tests_aside(self, collection: list[str]) -> None:
        names = set(self._names.read_text().splitlines())
        others = [index for index in self.pending if collection[index] not in names]
        if len(others) < AT_LEAST * len(self.nodes):
            others = []  # too few for several workers
        self._serial = [index for index in self.pending if index not in set(others)]
        self.pending = others
