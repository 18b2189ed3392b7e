"""Blocking HTTP requests, for what the SDK's client does not show or would not send."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED

ACCEPT = "application/json, text/event-stream"


def headers_of(message: dict[str, Any], session: str | None = None) -> dict[str, str]:
    """The headers that a client sends with a JSON-RPC message; a message with ``_meta`` is one of 2026-07-28."""
    headers = {"Content-Type": "application/json", "Accept": ACCEPT}
    if "_meta" in message.get("params", {}):
        headers.update({"MCP-Protocol-Version": "2026-07-28", **routing(message)})
    elif message["method"] != "initialize":
        headers["MCP-Protocol-Version"] = "2025-11-25"
    if session is not None:
        headers["Mcp-Session-Id"] = session
    return headers


def routing(message: dict[str, Any]) -> dict[str, str]:
    """The headers that 2026-07-28 requires in addition to the message."""
    headers = {"Mcp-Method": message["method"]}
    if "name" in message["params"]:
        headers["Mcp-Name"] = message["params"]["name"]
    return headers


class Request:
    """One request on a connection of its own. The response's status and headers have been read, not its body."""

    def __init__(
        self,
        address: str,
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        message: dict[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=DEADLINE)
        body = None if message is None else json.dumps(message).encode()
        self.sent = time.monotonic()
        self._connection.request(method, path, body, headers or {})
        if wait:
            self.answered()

    def answered(self) -> HTTPResponse:
        """Wait for the headers of the response."""
        self.response = self._connection.getresponse()
        self.seconds = time.monotonic() - self.sent
        self.status = self.response.status
        return self.response

    def header(self, name: str) -> str:
        return self.response.headers[name] or ""

    def read(self) -> bytes:
        try:
            return self.response.read()
        finally:
            self.leave()

    def event(self) -> dict[str, str]:
        """The next server-sent event."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\r\n"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        return fields

    def leave(self) -> None:
        """Close the connection, also in the middle of a response."""
        if (raw := self._connection.sock) is not None:
            with suppress(OSError):  # the server has closed it
                raw.shutdown(socket.SHUT_RDWR)
        if hasattr(self, "response"):
            self.response.close()
        self._connection.close()


def post(address: str, path: str, message: dict[str, Any], session: str | None = None, **options: Any) -> Request:
    return Request(address, path, "POST", headers_of(message, session), message, **options)


def open_session(address: str, path: str) -> str:
    """Open a session as a client of 2025-11-25; returns its id."""
    opening = post(address, path, INITIALIZE)
    opening.read()
    session = opening.header("mcp-session-id")
    post(address, path, INITIALIZED, session).read()
    return session


def exchange(address: str, request: bytes) -> bytes:
    """Send bytes; returns everything that the server sends until it closes the connection."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def status_of(address: str, path: str) -> int:
    """The status of a GET request; the path is sent exactly as given."""
    answer = exchange(address, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return int(answer.split(b" ", 2)[1])
