"""tests/project/access_asgi.py in a process: handlers that each let in others."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.harness import DEADLINE, INITIALIZE, Process, call
from tests.support.raw_http import headers_of


class AccessServers:
    """A process that serves tests/project/access_asgi.py."""

    def __init__(self, process: Process, address: str, notes: Path) -> None:
        self.process = process
        self.address = address
        self.notes = notes

    def say(self, word: str) -> None:
        """ "go", or a token that is revoked from now on."""
        with self.notes.open("a") as file:
            file.write(f"{word}\n")

    def ask(self, path: str, *, modern: bool = False, **headers: str) -> httpx2.Response:
        """A call of ``who``, or for older clients the opening of a session."""
        message = call(1, "who", modern=True) if modern else INITIALIZE
        return httpx2.post(f"{self.address}{path}", json=message, headers={**headers_of(message), **headers})

    def who(self, path: str, mode: str, **headers: str) -> str:
        async def work() -> str:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
                Client(streamable_http_client(f"{self.address}{path}", http_client=http), mode=mode) as client,
            ):
                result = await client.call_tool("who", {})
                return str(result.structured_content["result"])  # type: ignore[index]

        return anyio.run(work)


def serving_access_servers(server: str, notes: Path) -> AbstractContextManager[tuple[Process, str]]:
    named = ["--server", "tests.project.access_asgi.server"] if server == "runmcp" else []
    env = {**in_django.ENVIRONMENT, "TEST_DEBUG": "0", "TEST_NOTES": str(notes)}
    return serving(server, "tests.project.access_asgi", *named, env=env)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def logged_in(name: str) -> dict[str, str]:
    from django.test import Client as Browser

    browser = Browser()
    browser.force_login(in_django.user(name))
    return {"Cookie": f"sessionid={browser.cookies['sessionid'].value}"}
