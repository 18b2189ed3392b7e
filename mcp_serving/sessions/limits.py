"""How many sessions and streams one user or one session may have at the same time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mcp_serving.web_servers.responses import Refusal


@dataclass(frozen=True)
class Limits:
    """The limits of a handler for one caller; None means no limit.

    Args:
        sessions_per_user: open sessions of one user or token. The sessions of anonymous callers are limited only
            together, by the SDK's ``max_sessions``.
        streams_per_session: running calls of one session, and also GET streams of one session. At 2026-07-28, which
            has no sessions: running calls of one user or token, and also ``subscriptions/listen`` streams.
        header_size: bytes of all names and values of a request's headers.

    Raises:
        ValueError: a limit is not a positive integer.
    """

    sessions_per_user: int | None
    streams_per_session: int | None
    header_size: int | None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
                raise ValueError(f"max_{name} is {limit!r}; it must be a positive integer, or None for no limit.")

    def refusal(self, header_size: int) -> Refusal | None:
        """The refusal of a request whose headers are too large; None if they are not."""
        limit = self.header_size
        if limit is None or header_size <= limit:
            return None
        return Refusal(431, "The headers are too large.", f"its headers have more than max_header_size={limit} bytes")


class Counted:
    """A context manager that adds one to the count of a key. At the limit, its value is False, and it adds nothing.

    A generator would be slower, and each call of a session or a user needs one. Enter an object once.

    Args:
        counts: the count of each key. A count of zero is removed.
        key: the key to count; if empty or None, nothing is counted.
        limit: the highest count; None for no limit.
    """

    __slots__ = ("_counts", "_is_counted", "_key", "_limit")

    def __init__(self, counts: Counter[str], key: str | None, limit: int | None = None) -> None:
        self._counts = counts
        self._key = key
        self._limit = limit
        self._is_counted = False

    def __enter__(self) -> bool:
        if not self._key:
            return True
        count = self._counts[self._key]
        if self._limit is not None and count >= self._limit:
            return False
        self._counts[self._key] = count + 1
        self._is_counted = True
        return True

    def __exit__(self, *_: object) -> None:
        if self._key and self._is_counted:
            self._counts[self._key] -= 1
            if not self._counts[self._key]:
                del self._counts[self._key]


TOO_MANY_SESSIONS = Refusal(
    503,
    "You have too many open sessions.",
    "its user has as many sessions as max_sessions_per_user allows",
    headers={"retry-after": "1"},
)
TOO_MANY_STREAMS = Refusal(
    429,
    "Too many streams are open.",
    "its session, or its user, has as many streams as max_streams_per_session allows",
    headers={"retry-after": "1"},
)
