"""Python's garbage collector while a server runs: during each collection, all calls wait."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (5_000, 10, 20)
"""For ``gc.set_threshold``. Calls in sessions leave cyclic garbage in the SDK. With Python's default thresholds, the
collector visits all idle sessions so often that 1,000 idle sessions raise the CPU time of a call by a half."""

IMPORT_THRESHOLD = 1_000_000
"""For ``gc.set_threshold``. The imports of the SDK and a server create about 100,000 objects."""


@contextmanager
def imports_unvisited() -> Iterator[None]:
    """While a block imports the SDK and a server, the collector almost never runs. Later it skips what was imported.

    With Python's default thresholds, the collector takes a quarter of the CPU time of these imports, and frees almost
    nothing. Only for a process of our own: garbage that exists at the end of the block is never freed.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or not before[0]:
        yield
        return
    meanwhile = (max(before[0], IMPORT_THRESHOLD), *before[1:])
    gc.set_threshold(*meanwhile)
    try:
        yield
        gc.freeze()  # otherwise a collection would follow at once
    finally:
        if gc.get_threshold() == meanwhile:  # unless the block has set other thresholds
            gc.set_threshold(*before)


@contextmanager
def imports_frozen() -> Iterator[None]:
    """For the length of a block, the collector does not visit the objects that exist at its start.

    A full collection would take a tenth of a second for Django and the SDK, again and again, and find nothing.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def rare_collections() -> Iterator[None]:
    """For the length of a block, the collector runs less often, unless the project has set larger thresholds.

    Only for a process that does nothing but serve, because the thresholds are those of the whole process.
    """
    before = gc.get_threshold()
    if gc.isenabled() and before[0]:
        gc.set_threshold(*map(max, before, THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)
