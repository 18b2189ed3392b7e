"""The session ids that clients get: the SDK's id, signed for the user or token that opened the session.

An id is valid only for its owner. For other callers it does not exist, so that they get the SDK's own answer to an
unknown session.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signing import BadSignature, Signer
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Scope, Send

HEADER = MCP_SESSION_ID_HEADER.encode()
_UNKNOWN = "unknown"
"""A session id that the SDK never uses."""
PROCESS = f"~{secrets.token_hex(4)}"
"""A name for this process, where it has no channel. The name of a channel never begins with "~"."""


@dataclass
class SessionId:
    """The parts of a session id.

    The nonce is made before the SDK makes its own id, so that resumable events of the first request have a session.
    """

    sdk_id: str = _UNKNOWN
    nonce: str = ""
    signed: bytes = b""
    """The whole id, as the client gets it."""
    worker: str = ""
    """The channel of the worker that opened the session, or the name of its process; empty if it had no channel yet."""

    @classmethod
    def new(cls, worker: str) -> SessionId:
        """The id of a session that is being opened in this process."""
        return cls(nonce=secrets.token_hex(8), worker=worker)

    @classmethod
    def of(cls, headers: list[bytes], owner: str | None) -> SessionId:
        """The session that a request names in its headers.

        An unknown session if the id belongs to another owner, or if there is more than one header.
        """
        try:
            sdk_id, nonce, worker = _unsigned(headers[0].decode("latin-1"), owner, *_keys()).split(".", 2)
        except (BadSignature, ValueError):
            return cls()
        return cls(sdk_id, nonce, headers[0], worker) if len(headers) == 1 else cls()

    @property
    def has_channel(self) -> bool:
        """Whether requests can be relayed to the worker that has the session."""
        return self.worker != "" and not self.worker.startswith("~")

    @property
    def is_of_another_process(self) -> bool:
        """Whether a process without a channel opened the session, and this is not that process."""
        return self.worker.startswith("~") and self.worker != PROCESS

    def signing(self, send: Send, owner: str | None) -> Send:
        """``send`` that replaces the SDK's session id in the response by the signed one."""

        def send_signed(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = [
                    (name, self._signed(value, owner) if name.lower() == HEADER else value)
                    for name, value in message.get("headers", ())
                ]
                message = {**message, "headers": headers}
            return send(message)

        return send_signed

    def _signed(self, sdk_id: bytes, owner: str | None) -> bytes:
        if not self.signed:
            self.sdk_id = sdk_id.decode()
            self.signed = _signer(owner).sign(f"{self.sdk_id}.{self.nonce}.{self.worker}").encode()
        return self.signed


def in_headers(scope: Scope) -> list[bytes]:
    """The session ids in the headers of a request."""
    return [value for name, value in scope["headers"] if name == HEADER]


def _signer(owner: str | None) -> Signer:
    return Signer(salt=f"mcp_serving.session:{owner!r}")


def _keys() -> tuple[Any, ...]:
    """The keys that ``Signer`` accepts; they are part of the cache's key."""
    return settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS


@lru_cache(maxsize=4096)
def _unsigned(signed: str, owner: str | None, *_: Any) -> str:
    """The signed text without its signature. Exceptions are not cached, so only valid ids fill the cache.

    Raises:
        BadSignature: the id was not signed for this owner.
    """
    return _signer(owner).unsign(signed)
