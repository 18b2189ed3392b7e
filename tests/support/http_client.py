"""Many HTTP/1.1 connections in one event loop. A test sees each response's status, headers, and how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.harness import INITIALIZE, INITIALIZED, MODERN_META
from tests.support.raw_http import ACCEPT


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages of a body, JSON or an event stream."""
        if self.headers["content-type"].startswith("text/event-stream"):
            return [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: {")]
        return [json.loads(self.body)]


@dataclass
class Connection:
    """One kept-alive connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with every request."""

    async def request(self, method: str, path: str, content: Any = None, **headers: str) -> Answer:
        """Send a request and read the whole response.

        Raises:
            asyncio.IncompleteReadError: the connection ended before the response did.
        """
        self.send(method, path, content, **headers)
        return await self.answer()

    def send(self, method: str, path: str, content: Any = None, **headers: str) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        lines = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            lines["Content-Type"] = "application/json"
        if method == "POST":
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def answer(self) -> Answer:
        answer = await self.head()
        async for chunk in self.chunks(answer):
            answer.body += chunk
        return answer

    async def head(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return Answer(int(head[0].split()[1]), {k.lower(): v for k, v in (x.split(": ", 1) for x in head[1:] if x)})

    async def parts(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body of a response with a content length, in pieces."""
        left = int(answer.headers["content-length"])
        while left:
            part = await self.reader.read(min(left, 1_000_000))
            if not part:
                raise asyncio.IncompleteReadError(part, left)
            left -= len(part)
            yield part

    async def chunks(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive, up to the end that HTTP defines."""
        if answer.headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(answer.headers["content-length"]))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def events(self, answer: Answer) -> AsyncIterator[dict[str, Any]]:
        """The JSON-RPC messages of an event stream as they arrive."""
        text = b""
        async for chunk in self.chunks(answer):
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def ended(self) -> bytes:
        """Wait until the server has closed the connection; returns what it still sent."""
        return await self.reader.read()

    def reset(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


class Clients:
    """Connections to one server; the end of the block resets them all."""

    def __init__(self, address: str) -> None:
        self._address = urlsplit(address)
        self._connections: list[Connection] = []

    async def connect(self, **headers: str) -> Connection:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        connection = Connection(reader, writer, {"Host": self._address.netloc, "Accept": ACCEPT, **headers})
        self._connections.append(connection)
        return connection

    async def session(self, path: str = "/mcp", *, elicitation: bool = False) -> Connection:
        """A connection with a new session of 2025-11-25; with ``elicitation``, its client can be asked."""
        connection = await self.connect()
        await self.initialize(connection, path, elicitation=elicitation)
        return connection

    async def initialize(self, connection: Connection, path: str = "/mcp", *, elicitation: bool = False) -> None:
        params = {**INITIALIZE["params"], "capabilities": {"elicitation": {}} if elicitation else {}}
        answer = await connection.request("POST", path, {**INITIALIZE, "params": params})
        assert answer.status == 200, answer
        connection.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        connection.headers["Mcp-Protocol-Version"] = "2025-11-25"
        assert (await connection.request("POST", path, INITIALIZED)).status == 202

    async def another(self, connection: Connection) -> Connection:
        """A further connection of the same client, in the same session."""
        return await self.connect(**{name: value for name, value in connection.headers.items() if name != "Host"})

    async def modern(self) -> Connection:
        """A connection of a 2026-07-28 client."""
        return await self.connect(**{"Mcp-Protocol-Version": "2026-07-28"})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.reset()
        for connection in self._connections:
            with suppress(OSError):
                await connection.writer.wait_closed()


def listen(request_id: int | str = "listen") -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": "subscriptions/listen",
        "params": {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META},
    }
