"""Stores records in batches, in a thread of its own: a call never waits for the database."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import pydantic_core
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, connections, router, transaction
from django.utils import timezone

from mcp_serving.logs import escaped
from mcp_serving.record_queue import RecordQueue
from mcp_serving.signals import CallRecord, MakeRecord

# Not mcp_serving.calls: that is the logger of the calls themselves, whose handlers expect their fields.
logger = logging.getLogger("mcp_serving.call_records")

BATCH_SECONDS = 1.0

MAX_ARGUMENTS = 4000
"""Characters of the arguments of a call that are stored."""


def store(make_record: MakeRecord, sender: Any, params: Mapping[str, Any] | None) -> None:
    """Put a call into the queue, with the arguments that its tool allows to store."""
    recorded = getattr(sender, "recorded_arguments", None)
    _queue.put((make_record, _arguments(make_record(), recorded, params or {}) if recorded else ""))


def _arguments(record: CallRecord, tools: Mapping[str, Collection[str]], params: Mapping[str, Any]) -> str:
    recorded = tools.get(record.name) if record.method == "tools/call" else None
    given = params.get("arguments")
    if recorded is None or not isinstance(given, Mapping):
        return ""
    text = json.dumps({name: given[name] for name in given if name in recorded}, ensure_ascii=False, default=repr)
    if len(text) > MAX_ARGUMENTS:
        text = text[:MAX_ARGUMENTS] + f"... and {len(text) - MAX_ARGUMENTS} characters more"
    return escaped(text)  # a database may refuse a lone surrogate


def _write(batch: Sequence[tuple[MakeRecord, str]]) -> None:
    """Store a batch, in the thread of the queue.

    Raises:
        django.db.Error: the database cannot be used now.
    """
    insert = _Insert()
    rows = [insert.row(make_record(), arguments) for make_record, arguments in batch]
    try:
        insert.execute(rows)
    except (DataError, IntegrityError):  # the database refuses a value: the other calls are stored
        for row, (make_record, _) in zip(rows, batch, strict=True):
            try:
                insert.execute([row])
            except (DataError, IntegrityError) as error:
                logger.error("The call of %s cannot be stored: %s", make_record().name, error)


_PLAIN = (
    "method",
    "name",
    "reason",
    "duration",
    "thread_wait",
    "answer_size",
    "transport",
    "protocol_version",
    "request_id",
)
_OTHERS = ("started", "outcome", "session", "user", "user_name", "token", "client", "client_version", "arguments")
_COLUMNS = (*_PLAIN, *_OTHERS)
_plain = attrgetter(*_PLAIN)


class _Insert:
    """The statement that stores calls. ``bulk_create`` needs four times the CPU time.

    PostgreSQL gets a batch as one JSON text. With one parameter for each value, psycopg needs three times the CPU time.
    """

    def __init__(self) -> None:
        from mcp_serving.calls.models import Call  # after django.setup()

        self._database = router.db_for_write(Call)
        self._connection = connections[self._database]
        quote = self._connection.ops.quote_name
        fields: list[Any] = [Call._meta.get_field(name) for name in _COLUMNS]
        columns = [quote(field.column) for field in fields]
        if self._connection.vendor == "postgresql":
            self._json_names = [field.column for field in fields]
            types = [field.db_type(self._connection) for field in fields]
            typed = ", ".join(map(" ".join, zip(columns, types, strict=True)))
            values = f"SELECT {', '.join(columns)} FROM json_to_recordset(CAST(%s AS json)) AS batch ({typed})"
        else:
            self._json_names = []
            values = f"VALUES ({', '.join(['%s'] * len(columns))})"
        self._sql = f"INSERT INTO {quote(Call._meta.db_table)} ({', '.join(columns)}) {values}"
        self._started: Any = Call._meta.get_field("started")
        self._user: Any = Call._meta.get_field("user")

    def row(self, record: CallRecord, arguments: str) -> list[Any]:
        """The values for ``_COLUMNS``. A record has plain texts and numbers, which databases accept as they are."""
        started = record.started if settings.USE_TZ else timezone.make_naive(record.started)
        return [
            *_plain(record),
            self._started.get_db_prep_save(started, self._connection),
            record.outcome.value,
            record.session or "",
            self._user_key(record.user_id),
            record.user or "",
            record.token or "",
            record.client or "",
            record.client_version or "",
            arguments,
        ]

    def _user_key(self, text: str | None) -> Any:
        """The primary key of the user; None for a user of another kind than the project's user model."""
        if text is None:
            return None
        try:
            return self._user.get_db_prep_save(self._user.target_field.to_python(text), self._connection)
        except ValidationError:
            return None

    def execute(self, rows: list[list[Any]]) -> None:
        if self._json_names:
            batch = [dict(zip(self._json_names, row, strict=True)) for row in rows]
            with self._connection.cursor() as cursor:  # one statement is atomic by itself
                cursor.execute(self._sql, [pydantic_core.to_json(batch, fallback=str).decode()])
        else:
            with transaction.atomic(using=self._database), self._connection.cursor() as cursor:
                cursor.executemany(self._sql, rows)


_queue: RecordQueue[tuple[MakeRecord, str]] = RecordQueue("records of calls", _write, delay=BATCH_SECONDS)
