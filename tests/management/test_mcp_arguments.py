"""``key=value`` by the schema of a tool."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_serving.inspection.arguments import in_words, parsed

SCHEMA: dict[str, Any] = {
    "$defs": {
        "Status": {"enum": ["open", "paid"], "type": "string"},
        "Node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/Node"}}},
    },
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "on": {"type": "boolean"},
        "status": {"anyOf": [{"$ref": "#/$defs/Status"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "node": {"$ref": "#/$defs/Node"},
        "anything": {},
    },
}


@pytest.mark.parametrize(
    ("pairs", "arguments"),
    [
        (["text=a=b"], {"text": "a=b"}),
        (["text=1"], {"text": "1"}),
        (["count=3", "on=true"], {"count": 3, "on": True}),
        (["ratio=0.5"], {"ratio": 0.5}),
        (["ratio=null", "status=null"], {"ratio": None, "status": None}),
        (["status=open"], {"status": "open"}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (["counts=[1, 2]"], {"counts": [1, 2]}),
        (["counts=7"], {"counts": [7]}),
        (['node={"child": {}}'], {"node": {"child": {}}}),
        (["anything=x"], {"anything": "x"}),
    ],
)
def test_a_value_has_the_type_of_the_schema(pairs: list[str], arguments: dict[str, Any]) -> None:
    assert parsed(SCHEMA, pairs) == arguments


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        (["text"], "'text' is not an argument; write KEY=VALUE."),
        (["txt=a"], "There is no argument 'txt'; allowed are 'text'"),
        (["count=many"], "The argument 'count' is 'many'; it has to be JSON of type integer."),
        (["count=1", "count=2"], "The argument 'count' is given 2 times; it takes one value."),
    ],
)
def test_a_wrong_pair_is_refused_in_one_line(pairs: list[str], error: str) -> None:
    with pytest.raises(ValueError, match="^" + error.replace(".", r"\.")):
        parsed(SCHEMA, pairs)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("count", "integer, 1 to 9"),
        ("ratio", "number or null"),
        ("status", '"open" or "paid" or null'),
        ("tags", "list of string"),
        ("node", "object"),
        ("anything", "anything"),
    ],
)
def test_a_schema_is_said_in_words(name: str, words: str) -> None:
    assert in_words(SCHEMA["properties"][name], SCHEMA) == words
