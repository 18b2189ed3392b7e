"""One entry in a configuration file of an MCP client: everything else in the file stays as it is, comments included."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from datetime import datetime
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any

_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)
_TOML_HEADER = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write_entry(path: Path, keys: Sequence[str], value: dict[str, Any]) -> Path | None:
    """Set one entry in a file and keep a backup of the file beside it.

    Args:
        path: the file; it is created where it does not exist. TOML if its name ends so, else JSON with comments.
        keys: where the entry is, from the top of the document.
        value: the entry.

    Returns:
        The backup; None where there was no file.

    Raises:
        ValueError: the file is not valid, or the entry cannot be set without changing anything else.
        OSError: the file cannot be read or written.
    """
    path = path.resolve()  # a link stays a link
    text = path.read_bytes().decode() if path.exists() else ""
    changed = with_toml_entry(text, keys, value) if path.suffix == ".toml" else with_json_entry(text, keys, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    backup = None
    if path.exists():
        backup = path.with_name(f"{path.name}.{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.bak")
        shutil.copy2(path, backup)
    # Renamed into place: the client never reads half a file. mkstemp makes it readable for its owner alone.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(changed.encode())
        if backup is not None:
            shutil.copymode(backup, temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return backup


# JSON with comments and trailing commas, as VS Code writes it


def with_json_entry(text: str, keys: Sequence[str], value: Any) -> str:
    """The text of a JSON document with ``value`` at ``keys``; all other characters stay.

    Raises:
        ValueError: the text is not JSON, or something on the way to the entry is not an object.
    """
    if not text.strip("\ufeff \t\r\n"):
        return json.dumps(_nested(keys, value), indent=2, ensure_ascii=False) + "\n"
    try:
        document = json.loads(_without_trailing_commas(_without_comments(text)).strip("\ufeff \t\r\n"))
    except JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from error
    expected = _with_value(document, keys, value)
    changed = _edited(text, keys, value)
    if json.loads(_without_trailing_commas(_without_comments(changed)).strip("\ufeff \t\r\n")) != expected:
        raise ValueError("the entry cannot be set without changing anything else")
    return changed


def _edited(text: str, keys: Sequence[str], value: Any) -> str:
    bare = _without_comments(text)  # of the same length
    plain = _without_trailing_commas(bare)
    newline = "\r\n" if "\r\n" in text else "\n"
    indented = re.search(r"^([ \t]+)\S", bare, re.MULTILINE)
    unit = indented[1] if indented else "  "
    start = plain.index("{")
    for depth, key in enumerate(keys):
        members, end = _members(plain, start)
        margin = unit * (depth + 1)
        if key in members:
            start, stop = members[key]
            if depth + 1 < len(keys):
                continue
            return text[:start] + _dumped(value, margin, unit, newline) + text[stop:]
        member = f"{json.dumps(key)}: {_dumped(_nested(keys[depth + 1 :], value), margin, unit, newline)}"
        last = max((stop for _, stop in members.values()), default=start + 1)
        needs_comma = bool(members) and "," not in bare[last:end]
        before = text[:last] + ("," if needs_comma else "") + text[last:end].rstrip()
        return f"{before}{newline}{margin}{member}{newline}{unit * depth}{text[end:]}"
    raise AssertionError("keys is empty")


def _members(plain: str, start: int) -> tuple[dict[str, tuple[int, int]], int]:
    """The values of an object that starts at ``start``: from where to where each is; and where its brace closes."""
    decode = JSONDecoder().raw_decode
    found = {}
    position = _skipped(plain, start + 1)
    while plain[position] != "}":
        key, position = decode(plain, position)
        begin = _skipped(plain, _skipped(plain, position) + 1)
        _, position = decode(plain, begin)
        found[key] = begin, position
        position = _skipped(plain, position)
        if plain[position] == ",":
            position = _skipped(plain, position + 1)
    return found, position


def _skipped(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _dumped(value: Any, margin: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}{margin}".join(lines)


def _without_comments(text: str) -> str:
    def blank(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else re.sub(r"[^\r\n]", " ", found[0])

    return _STRING_OR_COMMENT.sub(blank, text)


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_TRAILING_COMMA.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def _nested(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _with_value(document: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    if not isinstance(document, dict):
        raise ValueError(f"the value that should hold {keys[0]!r} is not an object")
    return {**document, keys[0]: _with_value(document.get(keys[0], {}), keys[1:], value)}


# TOML, for Codex


def with_toml_entry(text: str, keys: Sequence[str], value: dict[str, Any]) -> str:
    """The text of a TOML document with the table ``value`` at ``keys``; all other lines stay.

    Raises:
        ValueError: the text is not TOML, or the table is written inline.
    """
    try:
        expected = _with_value(tomllib.loads(text), keys, value)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not valid TOML: {error}") from error
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    place = None
    inside = False
    for line in lines:
        if header := _TOML_HEADER.match(line):
            inside = _toml_keys(header[1])[: len(keys)] == list(keys)
            if inside and place is None:
                place = len(kept)
        if not inside:
            kept.append(line)
    table = toml_table(keys, value)
    if place is None:
        before, after = text, ""
    else:
        before, after = "".join(kept[:place]), "".join(kept[place:])
    if before and not before.endswith("\n"):
        before += "\n"
    if before and not before.endswith("\n\n"):
        before += "\n"
    changed = before + table + (f"\n{after}" if after else "")
    try:
        same = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ValueError("the entry cannot be set without changing anything else")
    return changed


def toml_table(keys: Sequence[str], value: dict[str, Any]) -> str:
    """A TOML table at ``keys``; the dicts in it become tables below it."""
    lines = [f"[{'.'.join(map(_toml_key, keys))}]"]
    lines += [f"{_toml_key(key)} = {_toml(each)}" for key, each in value.items() if not isinstance(each, dict)]
    tables = [toml_table([*keys, key], each) for key, each in value.items() if isinstance(each, dict)]
    return "\n".join([*lines, "", *tables]).rstrip("\n") + "\n"


def _toml(value: Any) -> str:
    # The strings, numbers, booleans and lists of JSON are TOML as well.
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _toml_keys(header: str) -> list[str]:
    """The keys of a table's header; quoted ones without their quotation marks."""
    found = re.findall(r'"((?:\\.|[^"\\])*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)', header)
    return [next((part for part in parts if part), "") for parts in found]
