"""What a server offers, in words for a terminal."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import Any

from pydantic import BaseModel

from mcp_serving.inspection.arguments import in_words
from mcp_serving.inspection.catalog import Declaration, Offered
from mcp_serving.logs import escaped


def indented(value: Any) -> str:
    """JSON for people. A value of the SDK becomes what clients receive."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(value, indent=2, ensure_ascii=False)


def section(title: str, listed: list[Offered]) -> str:
    """A heading, and a line for each; cut to the width of a terminal, whole in a pipe."""
    width = min(max(len(offered.name) for offered in listed), 40)
    lines = [f"  {escaped(offered.name):{width}}  {escaped(offered.summary)}".rstrip() for offered in listed]
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        lines = [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in lines]
    return "\n".join([title, *lines])


def described_as_json(offered: Offered, declaration: Declaration | None) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": offered.kind, **offered.as_json()}
    if declaration is not None:
        described |= {
            "permission": declaration.permission,
            "scopes": list(declaration.scopes),
            "asksFirst": declaration.asks_first,
            "source": {"file": str(declaration.file), "line": declaration.line} if declaration.file else None,
        }
    return described


def described(offered: Offered, declaration: Declaration | None) -> str:
    declared: Any = offered.declared
    lines = [f"{offered.kind} {offered.name}"]
    if offered.title != offered.name:
        lines.append(f"  {offered.title}")
    if declared.description:
        lines += ["", textwrap.indent(textwrap.dedent(declared.description).strip(), "  ")]
    facts = {"Hints": ", ".join(hints(offered)), "MIME type": getattr(declared, "mime_type", None) or ""}
    if declaration is not None:
        facts |= {
            "Permission": declaration.permission or "none: everybody may use it",
            "Asks first": "yes: the user of the client has to accept each call" if declaration.asks_first else "",
            "Scopes": ", ".join(declaration.scopes) or "none",
            "Source": declaration.source or "",
        }
    lines += ["", *(f"  {name:11} {value}" for name, value in facts.items() if value)]
    lines += _arguments(offered)
    for title, schema in (
        ("Input schema", getattr(declared, "input_schema", None)),
        ("Output schema", getattr(declared, "output_schema", None)),
    ):
        if schema:
            lines += ["", f"  {title}", textwrap.indent(indented(schema), "    ")]
    return "\n".join(lines)


def hints(offered: Offered) -> list[str]:
    """The annotations of a tool in words."""
    annotations = getattr(offered.declared, "annotations", None)
    words = {
        "read_only_hint": ("reads only", "may change data"),
        "destructive_hint": ("may destroy data", "only adds data"),
        "idempotent_hint": ("the same call twice changes nothing more", "each call counts"),
        "open_world_hint": ("reaches other systems", "stays in this system"),
    }
    given = {name: getattr(annotations, name, None) for name in words}
    return [words[name][0] if value else words[name][1] for name, value in given.items() if value is not None]


def _arguments(offered: Offered) -> list[str]:
    declared: Any = offered.declared
    if offered.kind == "tool":
        schema = declared.input_schema
        rows = [
            (name, in_words(each, schema), name in schema.get("required", ()), each)
            for name, each in schema.get("properties", {}).items()
        ]
    else:
        rows = [
            (each.name, "text", bool(each.required), {"description": each.description})
            for each in getattr(declared, "arguments", None) or ()
        ]
    if not rows:
        return []
    width = max(len(name) for name, *_ in rows)
    lines = ["", "  Arguments"]
    for name, kind, is_required, each in rows:
        default = f", default {json.dumps(each['default'], ensure_ascii=False)}" if "default" in each else ""
        words = f"{kind}{', required' if is_required else default}"
        about = " ".join((each.get("description") or "").split())
        lines.append(f"    {name:{width}}  {words}{'. ' + about if about else ''}")
    return lines
