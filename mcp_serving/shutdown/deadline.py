"""The deadline of a shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Deadline:
    """A time by which a shutdown must be over. It can be brought forward while somebody waits for it.

    Args:
        seconds: from now.
    """

    def __init__(self, seconds: float) -> None:
        self._time = anyio.current_time() + seconds
        self._reserved = 0.0
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._time - anyio.current_time())

    @property
    def lateness(self) -> float:
        """Seconds since the deadline, if it has passed.

        The event loop notices a deadline within milliseconds, unless it was blocked or the process was stopped.
        """
        return max(0.0, anyio.current_time() - self._time)

    def reserve(self, seconds: float) -> None:
        """Leave at least these seconds from now, also if the deadline has passed, and after each ``cut``."""
        self._time = max(self._time, anyio.current_time() + seconds)
        self._reserved = seconds

    def cut(self) -> None:
        """Bring the deadline forward: to now, or to the seconds that are reserved."""
        self._time = min(self._time, anyio.current_time() + self._reserved)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._time)

    @contextmanager
    def scope(self, share: float = 1.0) -> Iterator[anyio.CancelScope]:
        """Cancel the block at the deadline, or after ``share`` of the seconds that are left."""
        end = self._time if share == 1.0 else anyio.current_time() + share * self.remaining
        with anyio.CancelScope(deadline=end) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
