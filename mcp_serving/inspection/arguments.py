"""Arguments as text: ``key=value`` by the JSON Schema of a tool, and a JSON Schema in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Schema = Mapping[str, Any]


def parsed(schema: Schema, pairs: Iterable[str]) -> dict[str, Any]:
    """The arguments that ``key=value`` pairs give, with the types of the schema.

    A value is text where the schema takes text, else JSON. A key that is given several times makes a list.

    Raises:
        ValueError: a pair has no ``=``, the schema has no such key, or a value has the wrong type.
    """
    properties: Schema = schema.get("properties", {})
    given: dict[str, list[str]] = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not (key and found):
            raise ValueError(f"{pair!r} is not an argument; write KEY=VALUE.")
        if key not in properties and schema.get("additionalProperties", False) in (False, None):
            raise ValueError(f"There is no argument {key!r}; allowed are {', '.join(map(repr, properties)) or 'none'}.")
        given.setdefault(key, []).append(value)
    return {key: _value(key, values, properties.get(key, {}), schema) for key, values in given.items()}


def _value(key: str, values: list[str], schema: Schema, root: Schema) -> Any:
    kinds = types_of(schema, root)
    is_json_list = len(values) == 1 and values[0].lstrip().startswith("[")
    if "array" in kinds and not is_json_list:
        items: Any = next((each.get("items", {}) for each in variants(schema, root) if "items" in each), {})
        return [_one(key, value, types_of(items, root)) for value in values]
    if len(values) > 1:
        raise ValueError(f"The argument {key!r} is given {len(values)} times; it takes one value.")
    return _one(key, values[0], kinds)


def _one(key: str, value: str, kinds: set[str]) -> Any:
    if value == "null" and "null" in kinds:
        return None
    if "string" in kinds or not kinds:
        return value
    try:
        parsed_value = json.loads(value)
    except ValueError:
        wanted = " or ".join(sorted(kinds))
        raise ValueError(f"The argument {key!r} is {value!r}; it has to be JSON of type {wanted}.") from None
    return parsed_value


def resolved(schema: Any, root: Schema) -> Schema:
    """The schema itself, or the definition in the same document that its ``$ref`` names."""
    seen = set()
    while isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target: Any = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part, {}) if isinstance(target, Mapping) and part else target
        more = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **more} if isinstance(target, Mapping) else more
    return schema if isinstance(schema, Mapping) else {}


def variants(schema: Any, root: Schema) -> list[Schema]:
    """The alternatives of ``anyOf`` and ``oneOf``, or the schema alone."""
    schema = resolved(schema, root)
    alternatives = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    return [found for each in alternatives for found in variants(each, root)] if alternatives else [schema]


def types_of(schema: Any, root: Schema) -> set[str]:
    """The JSON types that a schema allows; empty where it allows any."""
    found: set[str] = set()
    for each in variants(schema, root):
        kind = each.get("type")
        if kind is None and "enum" not in each and "const" not in each:
            return set()
        values = each.get("enum", [each["const"]] if "const" in each else [])
        found |= (
            {_type_of(value) for value in values} if kind is None else {kind} if isinstance(kind, str) else set(kind)
        )
    return found


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), "string")


def in_words(schema: Any, root: Schema) -> str:
    """A schema as a developer says it: ``integer, 1 to 100``, ``list of text``, ``"open" or "paid"``."""
    parts = [_variant_in_words(each, root) for each in variants(schema, root)]
    return " or ".join(dict.fromkeys(parts)) or "anything"


def _variant_in_words(schema: Schema, root: Schema) -> str:
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "object" if "properties" in schema else "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        # An object inside may refer to itself: its own parts are not told.
        items = types_of(schema.get("items", {}), root)
        return f"list of {' or '.join(sorted(items)) or 'anything'}"
    if kind == "string" and "format" in schema:
        return f"string ({schema['format']})"
    return str(kind) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("minLength"))
    high = schema.get("maximum", schema.get("maxLength"))
    unit = " characters" if "minLength" in schema or "maxLength" in schema else ""
    if low is not None and high is not None:
        return f", {low} to {high}{unit}"
    if low is not None:
        return f", at least {low}{unit}"
    return f", at most {high}{unit}" if high is not None else ""
