"""``Mcp-Param-*`` headers: a client repeats arguments in them if the schema of the tool declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mcp.shared.inbound import x_mcp_header_map

InputSchemaLookup: TypeAlias = Callable[[str], Mapping[str, Any] | None]
"""The JSON schema of a tool's arguments, by the tool's name."""

_MOST_SCHEMAS = 10_000


def only_with_headers(lookup: InputSchemaLookup) -> InputSchemaLookup:
    """The schemas of the tools that declare such headers; None for all other tools.

    With each call, the SDK searches the whole schema of its tool for declarations. If there are none, it accepts every
    call, as it does without a schema.
    """
    known: dict[str, tuple[object, bool]] = {}

    def with_headers(name: str) -> Mapping[str, Any] | None:
        schema = lookup(name)
        if schema is None:
            return None
        known_schema, has_headers = known.get(name, (None, False))
        if known_schema is not schema:
            if len(known) >= _MOST_SCHEMAS:  # the lookup of a low-level server may have a schema for any name
                known.clear()
            has_headers = bool(x_mcp_header_map(schema))
            known[name] = schema, has_headers
        return schema if has_headers else None

    return with_headers
