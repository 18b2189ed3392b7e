"""The changes of a recording: compared field by field, and as a digest that two runs have in common."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal

from django.db.models import Field, FileField, Model

from mcp_serving.conf import configuration
from mcp_serving.preview.recording import LinkChange, Recording, Row, Table

Kind = Literal["create", "change", "delete"]

_SECRET = re.compile(r"passw|secret|token|credential|api_?key|private_?key|otp|(^|_)(pin|cvc|cvv|hash|salt)($|_)")
"""Names of fields whose values are never shown."""

_COPIED_KEY = re.compile(r"(^|_)(id|pk)$")
"""Names of fields that may hold the primary key of another row without a foreign key, such as ``object_id``."""


@dataclass(frozen=True)
class Run:
    """When a function ran: a time between the two moments is this run's own, and counts as "now".

    Attributes:
        start: aware, in UTC.
        end: aware, in UTC.
    """

    start: datetime
    end: datetime

    def is_now(self, value: object) -> bool:
        """Whether the value is a date or time that the run took from the clock."""
        if isinstance(value, datetime):
            aware = value if value.tzinfo is not None else value.astimezone()
            return self.start <= aware.astimezone(UTC) <= self.end
        return False


@dataclass(frozen=True)
class FieldChange:
    """One field of a changed row, with the values of ``Field.value_from_object``."""

    field: Field[Any, Any]
    before: Any
    after: Any

    @property
    def is_secret(self) -> bool:
        """Whether the values stay hidden: by the field's name, or by ``MCP_SERVING["PREVIEW_MASK"]``."""
        if _SECRET.search(self.field.name.lower()):
            return True
        return f"{self.field.model._meta.label}.{self.field.name}" in configuration().preview_mask


@dataclass(frozen=True)
class RowChange:
    """One row that was created, changed or deleted."""

    kind: Kind
    table: Table
    instance: Model
    """The row as it was before, if it existed; else as it is after."""
    after: Model | None
    fields: tuple[FieldChange, ...] = field(default=())


@dataclass(frozen=True)
class Changes:
    """The rows and links that differ after the run from before it, in the order in which they were first written."""

    rows: list[RowChange]
    links: list[LinkChange]

    @property
    def new(self) -> list[tuple[Table, Any]]:
        """The tables and primary keys of the rows that were created."""
        return [(each.table, each.instance.pk) for each in self.rows if each.kind == "create"]


def changes(recording: Recording) -> Changes:
    rows = [change for row in recording.rows.values() if (change := _change(row)) is not None]
    return Changes(rows, _changed_links(recording))


def _changed_links(recording: Recording) -> list[LinkChange]:
    """The links that differ after the run. A deleted row has lost its links, which needs no line of its own."""
    deleted = {key for key, row in recording.rows.items() if row.before is not None and row.after is None}
    return [
        each
        for each in recording.links.values()
        if each.existed != each.exists and not deleted.intersection(zip(ends(each.table), each.link, strict=True))
    ]


def ends(table: Table) -> list[Table]:
    """The tables that the two foreign keys of an automatic many-to-many table lead to."""
    models: Any = [each.related_model for each in table.model._meta.concrete_fields if each.is_relation]
    return [Table(table.database, each._meta.concrete_model) for each in models]


def _change(row: Row) -> RowChange | None:
    if row.before is None:
        if row.after is None:
            return None
        return RowChange("create", row.table, row.after, row.after, tuple(_values_of(row.after)))
    if row.after is None:
        return RowChange("delete", row.table, row.before, None)
    fields = tuple(_differences(row.before, row.after))
    return RowChange("change", row.table, row.before, row.after, fields) if fields else None


def _values_of(created: Model) -> Iterator[FieldChange]:
    for each in _fields(created):
        value = each.value_from_object(created)
        is_default = each.has_default() and not callable(each.default) and value == each.default
        if not each.primary_key and not is_default and value not in each.empty_values:
            yield FieldChange(each, None, value)


def _differences(before: Model, after: Model) -> Iterator[FieldChange]:
    for each in _fields(before):
        old, new = each.value_from_object(before), each.value_from_object(after)
        if old != new:
            yield FieldChange(each, old, new)


def _fields(instance: Model) -> list[Field[Any, Any]]:
    """The fields that say something: ``auto_now`` changes by itself. A parent's fields are rows of the parent."""
    return [each for each in instance._meta.local_concrete_fields if not getattr(each, "auto_now", False)]


def digest(recording: Recording, found: Changes, run: Run, mails: list[list[str]]) -> str:
    """A digest of all changes: equal for two runs that do the same.

    Values that differ by nature do not count: ``auto_now``, times that the run took from the clock, the primary keys
    of new rows and references to them, masked values, UUIDs that a default has made, and files, whose names the
    storage chooses. The order of the changes does not count either: a database promises none.
    """
    new = {key: f"new row {number}" for number, key in enumerate(found.new)}
    described = [
        [
            change.kind,
            *_name(change.table),
            new.get((change.table, change.instance.pk), str(change.instance.pk)),
            [
                [
                    each.field.name,
                    _comparable(each, each.before, change.instance, change, run, new),
                    _comparable(each, each.after, change.after, change, run, new),
                ]
                for each in change.fields
                if not isinstance(each.field, FileField)
            ],
        ]
        for change in found.rows
        if change.kind != "change" or not all(isinstance(each.field, FileField) for each in change.fields)
    ]
    links = sorted(
        [
            *_name(each.table),
            each.exists,
            [str(_reference(each.table, number, end, new)) for number, end in enumerate(each.link)],
        ]
        for each in found.links
    )
    counted = sorted([*_name(table), verb, rows] for (table, verb), rows in recording.counted.items())
    raw = sorted([*key, rows] for key, rows in recording.raw.items())
    text = json.dumps([sorted(described, key=repr), links, counted, raw, mails], default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _name(table: Table) -> tuple[str, str]:
    return table.database, table.model._meta.label


def _comparable(
    each: FieldChange,
    value: Any,
    instance: Model | None,
    change: RowChange,
    run: Run,
    new: dict[tuple[Table, Any], str],
) -> str | None:
    if each.is_secret or (change.kind == "create" and each.field.has_default() and _is_random(each.field)):
        return "hidden"
    if value is None or instance is None:
        return None
    if run.is_now(value):
        return "now"
    if each.field.is_relation and each.field.related_model is not None:
        model: Any = each.field.related_model
        return new.get((Table(change.table.database, model._meta.concrete_model), value), repr(value))
    if _COPIED_KEY.search(each.field.name) and str(value) in {str(pk) for _, pk in new}:
        return "new"
    if isinstance(value, date) and not isinstance(value, datetime) and value == run.end.date():
        return "today"
    return repr(each.field.value_to_string(instance))  # the repr of a value may contain its memory address


def _is_random(field: Field[Any, Any]) -> bool:
    return callable(field.default) and field.get_internal_type() == "UUIDField"


def _reference(table: Table, number: int, key: Any, new: dict[tuple[Table, Any], str]) -> Any:
    """One end of a many-to-many link: a new row has no key of its own yet."""
    return new.get((ends(table)[number], key), key)
