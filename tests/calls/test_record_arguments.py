"""``record_arguments``: what a tool allows to store, and the mistakes that a decorator reports."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_serving import MCPServer, Registry


def pay(card: str, amount: int) -> str:
    return card


@pytest.mark.parametrize(
    ("record_arguments", "stored"),
    [(True, {"card", "amount"}), (["card"], {"amount"}), ((), {"card", "amount"}), (["card", "amount"], set())],
)
def test_a_list_names_the_arguments_that_are_left_out(record_arguments: Any, stored: set[str]) -> None:
    server, registry = MCPServer("recorded"), Registry()
    server.tool("tool", record_arguments=record_arguments)(pay)
    server.read_tool("read", record_arguments=record_arguments)(pay)
    server.write_tool("write", confirm="Pay {amount}?", record_arguments=record_arguments)(pay)
    registry.tool("registered", record_arguments=record_arguments)(pay)
    server.include(registry)
    expected = frozenset(stored)
    names = ("tool", "read", "write", "registered")
    assert {name: server.recorded_arguments.get(name, frozenset()) for name in names} == dict.fromkeys(names, expected)


def test_nothing_is_stored_by_default_and_nothing_of_a_removed_tool() -> None:
    server = MCPServer("recorded")
    server.tool()(pay)
    assert server.recorded_arguments == {}
    server.tool("other", record_arguments=True)(pay)
    server.remove_tool("other")
    assert server.recorded_arguments == {}


def test_a_misspelt_argument_is_an_error_and_the_tool_is_not_declared() -> None:
    server = MCPServer("recorded")
    told = r"^'pay' has record_arguments with 'cart', which is not one of its arguments: 'amount', 'card'\.$"
    with pytest.raises(ValueError, match=told):
        server.tool(record_arguments=["cart"])(pay)
    with pytest.raises(TypeError, match="it has to be True, False or a list"):
        server.tool(record_arguments="card")(pay)
    server.tool(record_arguments=["card"])(pay)
