"""The ``Mcp-Param-*`` headers of tools: the SDK compares them only for tools that declare some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mcp_serving.param_headers import schemas_with_param_headers

PLAIN: Mapping[str, Any] = {"properties": {"text": {"type": "string"}}}
DECLARED: Mapping[str, Any] = {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def test_only_the_schemas_that_declare_a_header_are_found() -> None:
    lookup = schemas_with_param_headers({"plain": PLAIN, "declared": DECLARED}.get)
    for _ in range(2):
        assert lookup("plain") is None
        assert lookup("declared") is DECLARED
        assert lookup("missing") is None


def test_a_changed_schema_is_searched_again() -> None:
    schemas = {"tool": PLAIN}
    lookup = schemas_with_param_headers(schemas.get)
    assert lookup("tool") is None
    schemas["tool"] = DECLARED
    assert lookup("tool") is DECLARED


def test_a_schema_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    monkeypatch.setattr("mcp_serving.param_headers.x_mcp_header_map", searched.append)
    lookup = schemas_with_param_headers({"tool": PLAIN}.get)
    for _ in range(2):
        assert lookup("tool") is None
    assert searched == [PLAIN]


def test_many_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_serving.param_headers._MAX_SCHEMAS", 2)
    lookup = schemas_with_param_headers(lambda name: DECLARED if name == "declared" else dict(PLAIN))
    for number in range(10):
        assert lookup(f"tool {number}") is None
    assert lookup("declared") is DECLARED
