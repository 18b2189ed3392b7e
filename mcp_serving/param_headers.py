"""``Mcp-Param-*`` headers: a client repeats an argument in such a header if the tool's schema declares the header."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from mcp.shared.inbound import x_mcp_header_map

InputSchemaLookup: TypeAlias = Callable[[str], Mapping[str, Any] | None]
"""The JSON schema of a tool's arguments, by the tool's name."""

_MAX_SCHEMAS = 1000


def schemas_with_param_headers(lookup: InputSchemaLookup) -> InputSchemaLookup:
    """The schemas of the tools that declare ``Mcp-Param-*`` headers; None for all other tools.

    With each call of 2026-07-28 that has arguments or such headers, the SDK searches the whole schema of the tool for
    declarations. Without a declaration, it accepts the call.
    Here, each schema object is searched once; it must not be changed later.
    """
    known: dict[str, tuple[object, bool]] = {}

    def with_headers(name: str) -> Mapping[str, Any] | None:
        schema = lookup(name)
        if schema is None:
            return None
        known_schema, has_headers = known.get(name, (None, False))
        if known_schema is not schema:
            if len(known) >= _MAX_SCHEMAS:  # a low-level server may have a schema for every name that a client sends
                known.clear()
            has_headers = bool(x_mcp_header_map(schema))
            known[name] = schema, has_headers
        return schema if has_headers else None

    return with_headers
