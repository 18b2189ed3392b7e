"""What mcp_serving.preview.recording relies on beyond Django's public API: each test fails when Django moves it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models.sql import Query, compiler

from mcp_serving.preview import recording


def test_a_connection_asks_its_operations_for_each_compiler() -> None:
    asked = []
    original = connection.ops.compiler
    connection.ops.compiler = lambda name: asked.append(name) or original(name)  # type: ignore[method-assign,func-returns-value]
    try:
        Query(_user()).get_compiler(connection=connection)
    finally:
        del connection.ops.compiler
    assert asked == ["SQLCompiler"]


@pytest.mark.parametrize("name", ["SQLInsertCompiler", "SQLUpdateCompiler", "SQLDeleteCompiler"])
def test_the_compilers_of_writes_have_these_names_and_this_method(name: str) -> None:
    found: Any = connection.ops.compiler(name)
    assert found.__name__ == name
    assert found.__module__ == recording._COMPILERS == compiler.__name__
    assert callable(found.execute_sql)


def test_a_query_becomes_a_select_of_the_same_rows() -> None:
    select = _user().objects.filter(username="ann").query.chain(klass=Query)
    select.clear_ordering(force=True)
    select.clear_limits()
    select.clear_select_clause()
    select.default_cols = True
    assert "ann" in str(select)


def _user() -> Any:
    from django.contrib.auth.models import User

    return User
