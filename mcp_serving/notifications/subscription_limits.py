"""How many URIs a session or a ``subscriptions/listen`` stream, and its user, may be subscribed to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

MAX_URIS = 1024
"""URIs of one session or stream."""

MAX_URI_LENGTH = 2048
"""Characters of a URI."""

MAX_SIZE_PER_USER = 16 * 1024 * 1024
"""Bytes of memory for all subscriptions of one user or token in this process, approximately. All anonymous callers
together have as much as one user."""

_URI_OVERHEAD = 450
"""Measured bytes that Python needs for a subscription, besides the text of the URI and of its variables."""

_sizes: Counter[str | None] = Counter()
"""The bytes of each principal."""
_lock = threading.Lock()


class SubscribedUris:
    """The URIs that one session or stream is subscribed to. They count against the limits until ``clear``.

    Args:
        principal: the user or token of the session; None for an anonymous caller.
    """

    def __init__(self, principal: str | None) -> None:
        self._principal = principal
        self._uris: dict[str, int] = {}

    def add(self, uri: str) -> None:
        """Add a URI, if it is not there.

        Raises:
            MCPError: the session, the stream or the user has too many.
        """
        if uri in self._uris:
            return
        if len(uri) > MAX_URI_LENGTH:
            raise MCPError(INVALID_PARAMS, f"A URI may have at most {MAX_URI_LENGTH} characters")
        size = _size(uri)
        with _lock:
            if len(self._uris) >= MAX_URIS or _sizes[self._principal] + size > MAX_SIZE_PER_USER:
                raise MCPError(INTERNAL_ERROR, "Subscription limit reached")
            _sizes[self._principal] += size
        self._uris[uri] = size

    def discard(self, uri: str) -> None:
        """Remove a URI, if it is there."""
        self._release(self._uris.pop(uri, 0))

    def clear(self) -> None:
        """Remove all URIs."""
        self._release(sum(self._uris.values()))
        self._uris.clear()

    def _release(self, size: int) -> None:
        with _lock:
            _sizes[self._principal] -= size
            if not _sizes[self._principal]:
                del _sizes[self._principal]


@contextmanager
def subscribed_to(params: Any, principal: str | None) -> Iterator[None]:
    """Count the URIs in the parameters of ``subscriptions/listen`` for the length of the block.

    Raises:
        MCPError: the stream, or its user, has too many.
    """
    wanted = params.get("notifications") if isinstance(params, dict) else None
    uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
    if not isinstance(uris, list):  # there are none, or the SDK reports what is wrong
        yield
        return
    if len(uris) > MAX_URIS:
        raise MCPError(INVALID_PARAMS, f"A stream can subscribe to at most {MAX_URIS} URIs, not {len(uris)}")
    subscribed = SubscribedUris(principal)
    try:
        for uri in uris:
            if isinstance(uri, str):
                subscribed.add(uri)
        yield
    finally:
        subscribed.clear()


def _size(uri: str) -> int:
    return _URI_OVERHEAD + 2 * len(uri.encode(errors="surrogatepass"))
