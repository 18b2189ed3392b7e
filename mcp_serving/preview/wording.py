"""A preview in words: one line for each change, in the user's language and time zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Field, FileField, Model
from django.utils import formats, timezone
from django.utils.text import Truncator
from django.utils.translation import gettext, ngettext

from mcp_serving.logs import escaped
from mcp_serving.preview.changes import Changes, FieldChange, RowChange, ends
from mcp_serving.preview.recording import LinkChange, Recording, Table

MOST_LINES = 20
"""Lines of a preview. The other changes are counted."""

_JOINERS = "\u200c\u200d"
_VALUE_LENGTH = 80
_LINE_LENGTH = 400
_ALONE = 3
"""Rows of one model that have a line each when they are created or deleted; more rows share one line."""


def lines(recording: Recording, changes: Changes, mails: list[list[str]]) -> list[str]:
    """What a run would do, at most 20 lines; empty if it changes nothing."""
    _connect(recording)
    counted = Counter(recording.counted)
    found = [
        *_rows(changes.rows, counted),
        *_links(changes.links, set(changes.new)),
        *_counted(counted, recording),
        *_mails(mails),
    ]
    shown = [Truncator(_in_one_line(each)).chars(_LINE_LENGTH) for each in found[:MOST_LINES]]
    if (more := len(found) - MOST_LINES) > 0:
        shown[-1] = ngettext("and %(n)d more change", "and %(n)d more changes", more + 1) % {"n": more + 1}
    return shown


def _in_one_line(text: str) -> str:
    """Escape a text, so that a value cannot look like another line, or reverse the direction of the text after it.

    Joiners are kept, because some scripts need them.
    """
    return "".join(each if each in _JOINERS else escaped(each) for each in " ".join(text.split()))


def _connect(recording: Recording) -> None:
    """Let the recorded rows refer to each other: a related row may be deleted by now."""
    for row in recording.rows.values():
        for instance in (row.before, row.after):
            for each in instance._meta.local_concrete_fields if instance is not None else ():
                related_model: Any = each.related_model
                if each.is_relation and related_model is not None:
                    table = Table(row.table.database, related_model._meta.concrete_model)
                    related = recording.rows.get((table, getattr(instance, each.attname)))
                    if related is not None and related.before is not None:
                        setattr(instance, each.name, related.before)


def _rows(found: list[RowChange], counted: Counter[tuple[Table, str]]) -> Iterator[str]:
    """A line for each row, or one line for many rows of a table that are created, deleted or changed alike."""
    for (kind, table), group in groupby(found, key=lambda each: (each.kind, each.table)):
        rows = list(group)
        beyond = counted.pop((table, _VERBS[kind]), 0)
        values = [_values(each) for each in rows]
        alike = kind != "change" or len(set(values)) == 1
        if beyond or (alike and len(rows) > _ALONE):
            yield _together(rows, len(rows) + beyond, values[0] if alike else "")
        else:
            yield from (_row(each, text) for each, text in zip(rows, values, strict=True))


_VERBS = {"create": "insert", "change": "update", "delete": "delete"}


def _together(rows: list[RowChange], number: int, values: str) -> str:
    named = {
        "n": number,
        "name": _plural(rows[0].table.model, number),
        "owner": _common_owner(rows) if number == len(rows) else "",
        "values": values,
    }
    if rows[0].kind == "create":
        return gettext("create %(n)d %(name)s%(owner)s") % named
    if rows[0].kind == "delete":
        return gettext("delete %(n)d %(name)s%(owner)s") % named
    return (gettext("change %(n)d %(name)s: %(values)s") if values else gettext("change %(n)d %(name)s")) % named


def _common_owner(rows: list[RowChange]) -> str:
    """`` of order 7`` if a foreign key of all rows leads to the same object."""
    for each in rows[0].instance._meta.local_concrete_fields:
        if each.is_relation and not each.null:
            keys = {getattr(row.instance, each.attname) for row in rows}
            if len(keys) == 1 and (owner := _related(rows[0].instance, each)) is not None:
                return gettext(" of %(owner)s") % {"owner": _named(owner)}
    return ""


def _row(change: RowChange, values: str) -> str:
    if change.kind == "create":
        # Not by its str(), which may hold a primary key that the next run does not get.
        name = str(change.instance._meta.verbose_name)
        return gettext("create %(name)s: %(values)s") % {"name": name, "values": values or gettext("(empty)")}
    named = {"name": _named(change.instance), "values": values}
    return (gettext("delete %(name)s") if change.kind == "delete" else gettext("change %(name)s: %(values)s")) % named


def _values(change: RowChange) -> str:
    return ", ".join(_value_change(each, change) for each in change.fields)


def _value_change(each: FieldChange, change: RowChange) -> str:
    label = str(each.field.verbose_name)
    if each.is_secret:
        return gettext("%(label)s (hidden)") % {"label": label}
    after = _shown(each.field, change.after, each.after)
    if change.kind == "create":
        return f"{label} {after}"
    return f"{label} {_shown(each.field, change.instance, each.before)} -> {after}"


def _shown(field: Field[Any, Any], instance: Model | None, value: Any) -> str:
    """A value as the admin shows it: the label of a choice, the name of a related object, a localised time."""
    if field.is_relation and instance is not None and value is not None:
        related = _related(instance, field)
        return _short(str(related) if related is not None else value)
    if field.flatchoices:
        value = dict(field.flatchoices).get(value, value)
    if value is None or value == "":
        return gettext("(empty)")
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if isinstance(value, datetime):
        moment = timezone.localtime(value) if timezone.is_aware(value) else value
        return formats.date_format(moment, "DATETIME_FORMAT")
    if isinstance(value, bytes | memoryview):
        return ngettext("%(n)d byte", "%(n)d bytes", len(value)) % {"n": len(value)}
    if isinstance(field, FileField):
        return _short(getattr(value, "name", value))
    return _short(formats.localize(value, use_l10n=True))


def _short(value: object) -> str:
    return Truncator(str(value)).chars(_VALUE_LENGTH)


def _related(instance: Model, field: Field[Any, Any]) -> Model | None:
    try:
        related = getattr(instance, field.name)
    except ObjectDoesNotExist:
        return None
    return related if isinstance(related, Model) else None


def _named(instance: Model) -> str:
    """``order 7``; ``str()`` alone if it begins with the model's name."""
    text, name = _short(instance), str(instance._meta.verbose_name)
    return text if text.lower().startswith(name.lower()) else f"{name} {text}"


def _plural(model: type[Model], number: int) -> str:
    return str(model._meta.verbose_name if number == 1 else model._meta.verbose_name_plural)


def _links(found: list[LinkChange], new: set[tuple[Table, Any]]) -> Iterator[str]:
    for (table, exists, source), group in groupby(found, key=lambda each: (each.table, each.exists, each.link[0])):
        first, second = ends(table)
        names = [_end(second, each.link[1], new) for each in group]
        values = {"names": ", ".join(names), "owner": _end(first, source, new)}
        if len(names) > _ALONE:
            values["names"] = f"{len(names)} {_plural(second.model, len(names))}"
        yield (gettext("add %(names)s to %(owner)s") if exists else gettext("remove %(names)s from %(owner)s")) % values


def _end(table: Table, key: Any, new: set[tuple[Table, Any]]) -> str:
    if (table, key) in new:
        return gettext("the new %(name)s") % {"name": table.model._meta.verbose_name}
    found = table.model._base_manager.using(table.database).filter(pk=key).first()
    return _named(found) if found is not None else f"{table.model._meta.verbose_name} {key}"


def _counted(counted: Counter[tuple[Table, str]], recording: Recording) -> Iterator[str]:
    for (table, verb), rows in counted.items():
        values = {"n": rows, "name": _plural(table.model, rows)}
        if verb == "insert":
            yield gettext("create %(n)d %(name)s") % values
        elif verb == "upsert":
            yield gettext("create or change %(n)d %(name)s") % values
        elif verb == "update":
            yield gettext("change %(n)d %(name)s") % values
        elif verb == "delete":
            yield gettext("delete %(n)d %(name)s") % values
        else:
            yield gettext("add or remove %(n)d %(name)s") % values
    for (_, verb, name), count in recording.raw.items():
        statement = f"{verb.upper()} {name}".rstrip()
        if count is None:
            yield gettext("SQL %(statement)s") % {"statement": statement}
        else:
            values = {"statement": statement, "n": count}
            yield ngettext("SQL %(statement)s: %(n)d row", "SQL %(statement)s: %(n)d rows", count) % values


def _mails(mails: list[list[str]]) -> Iterator[str]:
    if mails:
        recipients = list(dict.fromkeys(each for mail in mails for each in mail))
        names = ", ".join(recipients[:_ALONE]) + (f" +{len(recipients) - _ALONE}" if len(recipients) > _ALONE else "")
        yield ngettext("send %(n)d mail to %(names)s", "send %(n)d mails to %(names)s", len(mails)) % {
            "n": len(mails),
            "names": names,
        }
