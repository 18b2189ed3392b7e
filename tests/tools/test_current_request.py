"""The current request, across tasks and nested requests."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import re
from typing import Any

from tests.support import in_django
from tests.support.harness import ROOT

from mcp_serving import MCPServer, current_request, get_user, testing  # isort: skip - after Django is set up

assert in_django


def test_the_package_has_one_context_variable() -> None:
    found = [
        path.name for path in (ROOT / "mcp_serving").rglob("*.py") if re.search(r"\bContextVar\(", path.read_text())
    ]
    assert found == ["current_request.py"]


def test_a_task_keeps_the_request_in_which_it_was_started() -> None:
    async def run() -> None:
        async def nonce_later() -> str:
            await changed.wait()
            return current_request.get().session_nonce

        changed = asyncio.Event()
        with current_request.updated(session_nonce="first"):
            task = asyncio.create_task(nonce_later())
        with current_request.updated(session_nonce="second"):
            changed.set()
            assert await task == "first"
            assert current_request.get().session_nonce == "second"
        assert current_request.get().session_nonce == ""

    asyncio.run(run())


class User:
    """A user that fails when the package, or asgiref on its behalf, compares it."""

    is_anonymous, is_authenticated, is_active = False, True, True

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a comparison of users may query the database")

    __hash__ = None  # type: ignore[assignment]


def _text(result: Any) -> str:
    return str(result.content[0].text)


def test_a_tool_that_calls_another_server_in_its_process_keeps_its_own_user() -> None:
    inner: MCPServer[Any] = MCPServer("inner")
    outer: MCPServer[Any] = MCPServer("outer")

    @inner.tool()
    def inner_user() -> str:
        return get_user().name  # type: ignore[union-attr]

    @outer.tool()
    async def users() -> str:
        before = get_user()
        async with testing.client(inner, user=User("inner")) as session:
            result = await session.call_tool("inner_user", {})
        assert get_user() is before
        return f"{before.name}, {_text(result)}"  # type: ignore[union-attr]

    async def run() -> None:
        async with testing.client(outer, user=User("outer")) as session:
            assert _text(await session.call_tool("users", {})) == "outer, inner"

    asyncio.run(run())


def test_the_package_changes_only_fields_that_the_current_request_has() -> None:
    names = {field.name for field in dataclasses.fields(current_request.CurrentRequest)}
    changed = set()
    for path in (ROOT / "mcp_serving").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "current_request.update",
                "current_request.updated",
            ):
                changed |= {keyword.arg for keyword in node.keywords}
    assert changed
    assert changed <= names
