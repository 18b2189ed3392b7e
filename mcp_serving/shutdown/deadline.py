from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Deadline:
    """A moment by which something has to be over, which can be brought forward while it is waited for.

    Args:
        seconds: from now.
        at_least: seconds that are left to it even when it is cut.
    """

    def __init__(self, seconds: float, *, at_least: float = 0.0) -> None:
        self._moment = anyio.current_time() + seconds
        self._at_least = at_least
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._moment - anyio.current_time())

    def cut(self) -> None:
        """Bring the moment as near as it may come; one that is nearer already stays."""
        self._moment = min(self._moment, anyio.current_time() + self._at_least)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._moment)

    @contextmanager
    def scope(self, share: float = 1.0) -> Iterator[anyio.CancelScope]:
        """Cancel the block when the deadline passes, or when ``share`` of the time that is left has passed."""
        moment = self._moment if share == 1.0 else anyio.current_time() + share * self.remaining
        with anyio.CancelScope(deadline=moment) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
