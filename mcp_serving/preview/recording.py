"""Record the rows that a function writes, on the connections of its thread.

This module is the boundary to two private parts of Django: ``DatabaseOperations.compiler``, which makes the SQL
compilers of a connection, and the attributes of ``Query`` that say which rows a statement affects.
tests/preview/test_django_boundary.py fails when one of them moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlparse
from django.db import connections
from django.db.models import Model, Q, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import Query
from django.db.transaction import TransactionManagementError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MAX_ROWS = 200
"""Rows that a recording reads. The rows beyond are counted, so that a large update costs no memory."""

_SQL_READ = 2000
"""Characters of a raw SQL statement that are parsed for its kind and table: sqlparse takes 1 ms for each 1,000."""

_BATCH = 500
"""Values in one ``IN (...)``: SQLite had a limit of 999."""

_RAW_DDL = {"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"}
_RAW_WRITES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "COPY", "LOAD", "CALL", "DO"} | _RAW_DDL
_RAW_ENDS = {"COMMIT", "ROLLBACK", "BEGIN", "START", "END"}
"""Statements of raw SQL that end the transaction or start another one, except ``ROLLBACK TO`` a savepoint."""

Link: TypeAlias = "tuple[Any, Any]"
"""A row of an automatic many-to-many table: the primary keys of its two objects."""


class Table(NamedTuple):
    """A model's table in one database."""

    database: str
    model: type[Model]


@dataclass
class Row:
    """One row that was written."""

    table: Table
    pk: Any
    before: Model | None
    """As it was before the first write; None if it did not exist."""
    after: Model | None = None
    """As it was after the last write; None if it does not exist any more."""


@dataclass
class LinkChange:
    """One many-to-many link that was added or removed."""

    table: Table
    link: Link
    existed: bool
    exists: bool = False


@dataclass
class Recording:
    """All writes of one run.

    Attributes:
        rows: the first 200 rows that were written, in order.
        links: many-to-many links.
        counted: rows beyond the first 200, as numbers for each table and kind of statement.
        raw: rows that raw SQL wrote, for each database, kind of statement and table; None: the number is unknown.
    """

    rows: dict[tuple[Table, Any], Row] = field(default_factory=dict)
    links: dict[tuple[Table, Link], LinkChange] = field(default_factory=dict)
    counted: Counter[tuple[Table, str]] = field(default_factory=Counter)
    raw: dict[tuple[str, str, str], int | None] = field(default_factory=dict)


@contextmanager
def recording(databases: Iterable[str]) -> Iterator[Recording]:
    """Record what the block writes to these databases in this thread; ``after`` is read when the block ends.

    The block and this function must be within one transaction of each database.
    """
    recorder = _Recorder()
    with ExitStack() as stack:
        for alias in databases:
            stack.enter_context(recorder.installed(connections[alias]))
        yield recorder.result
    recorder.read_after()


class _Recorder:
    def __init__(self) -> None:
        self.result = Recording()
        self._in_orm_statement = False
        self._rows_of_statement = 0

    @contextmanager
    def installed(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """Use compilers that report to this recorder, on this connection alone."""
        compiler: Callable[[str], type] = connection.ops.compiler
        setattr(connection.ops, "compiler", lambda name: self._reporting(compiler(name)))  # noqa: B010 - one object's
        try:
            with connection.execute_wrapper(self._statement):
                yield
        finally:
            delattr(connection.ops, "compiler")

    def _reporting(self, compiler: type) -> type:
        report = {
            "SQLInsertCompiler": self._insert,
            "SQLUpdateCompiler": self._update_or_delete,
            "SQLDeleteCompiler": self._update_or_delete,
        }.get(next((base.__name__ for base in compiler.__mro__ if base.__module__ == _COMPILERS), ""))
        if report is None:
            return compiler

        def execute_sql(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_orm_statement:
                return compiler.execute_sql(this, *args, **kwargs)  # type: ignore[attr-defined]
            return report(this, lambda: compiler.execute_sql(this, *args, **kwargs))  # type: ignore[attr-defined]

        return type(f"Reporting{compiler.__name__}", (compiler,), {"execute_sql": execute_sql})

    # Statements of the ORM

    def _insert(self, compiler: Any, execute: Callable[[], Any]) -> Any:
        query = compiler.query
        table = Table(compiler.using, query.model._meta.concrete_model)
        if table.model._meta.auto_created:
            self._note_links(table, [_link_of(each) for each in query.objs])
            return self._executed(execute)
        if query.on_conflict:
            self._note(table, None, _conflicting(table, query.objs[:MAX_ROWS], query.unique_fields))
        returned = self._executed(execute)
        keys = list(_inserted_keys(query.objs, compiler.returning_fields, returned))
        for pk in keys:
            if pk is not None and len(self.result.rows) < MAX_ROWS:
                self.result.rows.setdefault((table, pk), Row(table, pk, before=None))
        beyond = sum(pk is None or (table, pk) not in self.result.rows for pk in keys)
        if query.on_conflict == OnConflict.IGNORE:
            beyond = min(beyond, max(0, self._rows_of_statement))
        if beyond:
            verb = "upsert" if query.on_conflict == OnConflict.UPDATE else "insert"
            self.result.counted[table, verb] += beyond
        return returned

    def _update_or_delete(self, compiler: Any, execute: Callable[[], Any]) -> Any:
        query = compiler.query
        verb = "delete" if "Delete" in type(compiler).__name__ else "update"
        if verb == "update" and not query.values:
            return execute()  # only tables of parent models change: each has a statement of its own
        table = Table(compiler.using, query.model._meta.concrete_model)
        affected = _rows_of(query, compiler.using)
        instances = list(affected[: MAX_ROWS + 1])
        changes_key = verb == "update" and any(each.primary_key for each, *_ in query.values)
        if table.model._meta.auto_created:
            self._note_links(table, [_link_of(each) for each in instances])
        elif changes_key or len(self.result.rows) + len(instances) > MAX_ROWS:
            self.result.counted[table, verb] += affected.count()
        else:
            self._note(table, verb, instances)
        return self._executed(execute)

    def _executed(self, execute: Callable[[], Any]) -> Any:
        self._in_orm_statement = True
        try:
            return execute()
        finally:
            self._in_orm_statement = False

    def _note(self, table: Table, verb: str | None, instances: Iterable[Model]) -> None:
        """Keep rows as they are before a statement. With a verb, count the rows beyond the limit."""
        for instance in instances:
            if len(self.result.rows) < MAX_ROWS:
                self.result.rows.setdefault((table, instance.pk), Row(table, instance.pk, before=instance))
            elif verb is not None:
                self.result.counted[table, verb] += 1

    def _note_links(self, table: Table, links: Sequence[Link]) -> None:
        unknown = [link for link in links if (table, link) not in self.result.links]
        room = max(0, MAX_ROWS - len(self.result.links))
        if len(unknown) > room:
            self.result.counted[table, "link"] += len(unknown) - room
        existing = self._existing_links(table, unknown[:room])
        for link in unknown[:room]:
            self.result.links[table, link] = LinkChange(table, link, existed=link in existing)

    # Raw SQL

    def _statement(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Run a statement on the connection. If the ORM has not made the statement, it is raw SQL."""
        cursor, connection = context["cursor"], context["connection"]
        text = _text(sql, connection)
        if self._in_orm_statement or text.lstrip("( \n\t")[:6].upper() == "SELECT":
            result = execute(sql, params, many, context)
            self._rows_of_statement = cursor.rowcount
            return result
        writes = [_kind_and_table(each) for each in sqlparse.parse(text[:_SQL_READ])]
        for kind, _ in writes:
            if kind in _RAW_ENDS or (kind in _RAW_DDL and not connection.features.can_rollback_ddl):
                raise TransactionManagementError(
                    f"{kind} ends the transaction, and a tool with preview=True runs in one on the database "
                    f"{connection.alias!r}. Remove the statement, or preview=True."
                )
        result = execute(sql, params, many, context)
        for kind, table in writes:
            if kind in _RAW_WRITES:
                key = connection.alias, kind.lower(), table
                known = len(writes) == 1 and kind not in _RAW_DDL and cursor.rowcount >= 0
                before = self.result.raw.get(key, 0)
                self.result.raw[key] = before + cursor.rowcount if known and before is not None else None
        return result

    # After the run

    def read_after(self) -> None:
        """Read each row again, as the run has left it."""
        for table in dict.fromkeys(table for table, _ in self.result.rows):
            keys = [pk for each, pk in self.result.rows if each == table]
            for instance in self._instances(table, keys):
                self.result.rows[table, instance.pk].after = instance
        for table in dict.fromkeys(table for table, _ in self.result.links):
            links = [link for each, link in self.result.links if each == table]
            for link in self._existing_links(table, links):
                self.result.links[table, link].exists = True

    def _instances(self, table: Table, keys: Sequence[Any]) -> Iterator[Model]:
        for start in range(0, len(keys), _BATCH):
            yield from table.model._base_manager.using(table.database).filter(pk__in=keys[start : start + _BATCH])

    def _existing_links(self, table: Table, links: Sequence[Link]) -> set[Link]:
        wanted, found = set(links), set()
        for start in range(0, len(links), _BATCH):
            source, _ = _ends(table.model)
            keys = {first for first, _ in links[start : start + _BATCH]}
            rows = table.model._base_manager.using(table.database).filter(**{f"{source}__in": keys})
            found |= {link for each in rows.iterator() if (link := _link_of(each)) in wanted}
        return found


_COMMENTS = (sqlparse.tokens.Comment.Single, sqlparse.tokens.Comment.Multiline)
_COMPILERS = "django.db.models.sql.compiler"


def _rows_of(query: Any, using: str) -> QuerySet[Model]:
    """The rows that an UPDATE or DELETE statement affects."""
    select = query.chain(klass=Query)
    select.clear_ordering(force=True)
    select.clear_limits()
    select.clear_select_clause()
    select.default_cols = True
    return QuerySet(model=query.model, query=select, using=using)


def _conflicting(table: Table, objects: Sequence[Model], unique_fields: Sequence[Any]) -> QuerySet[Model]:
    """The rows that an INSERT ... ON CONFLICT may find; without ``unique_fields``, by all unique fields."""
    options = table.model._meta
    if unique_fields:
        names = [[each.name for each in unique_fields]]
    else:
        names = [[each.name] for each in options.local_concrete_fields if each.unique]
        names += [
            *(list(each.fields) for each in options.total_unique_constraints),
            *map(list, options.unique_together),
        ]
    fields: Any = [[options.get_field(name) for name in each] for each in names]
    found = [{each.attname: getattr(row, each.attname) for each in group} for row in objects for group in fields]
    known = [Q(**values) for values in found if all(map(_is_known, values.values()))]
    return table.model._base_manager.using(table.database).filter(reduce(or_, known, Q(pk__in=[])))


def _is_known(value: Any) -> bool:
    """Whether a value is not NULL, and is not computed by the database."""
    return value is not None and not hasattr(value, "resolve_expression")


def _inserted_keys(objects: Sequence[Model], returning: Sequence[Any] | None, rows: Sequence[Any]) -> Iterator[Any]:
    """The primary key of each inserted object; None where the database did not tell it."""
    names = [each.attname for each in returning or ()]
    for number, instance in enumerate(objects):
        pk = instance._meta.pk
        name = pk.attname if pk is not None else ""
        if name in names and number < len(rows):
            yield rows[number][names.index(name)]
        else:
            yield instance.pk if _is_known(instance.pk) else None


def _ends(through: type[Model]) -> tuple[str, str]:
    """The two foreign keys of an automatic many-to-many table."""
    first, second = (each.attname for each in through._meta.concrete_fields if each.is_relation)
    return first, second


def _link_of(row: Model) -> Link:
    first, second = _ends(type(row))
    return getattr(row, first), getattr(row, second)


def _text(sql: Any, connection: Any) -> str:
    """A statement as text: psycopg takes its own objects, too."""
    if isinstance(sql, str | bytes):
        return sql if isinstance(sql, str) else sql.decode(errors="replace")
    return str(sql.as_string(connection.connection) if hasattr(sql, "as_string") else sql)


def _kind_and_table(statement: Any) -> tuple[str, str]:
    """What a parsed statement does, and to which table: ``("UPDATE", "shop_order")``.

    For ``WITH``, they are those of the statement that writes. For a statement that begins or ends a transaction, the
    first keyword is the kind, and the table is empty.
    """
    words = [each for each in statement.flatten() if not each.is_whitespace and each.ttype not in _COMMENTS]
    first = words[0].normalized.upper().split()[0] if words else ""
    if first == "ROLLBACK" and any(each.normalized.upper() == "TO" for each in words):  # a savepoint
        return "", ""
    if first not in _RAW_WRITES and first != "WITH":
        return first, ""
    main = str(statement.get_type())
    verb, name, previous = "", "", ""
    for token in words:
        word = token.normalized.upper().split()[0]
        is_name = token.ttype in (sqlparse.tokens.Name, sqlparse.tokens.Literal.String.Symbol)
        if not verb:
            # Not the UPDATE of FOR UPDATE and FOR NO KEY UPDATE
            if word in ({main} if main in _RAW_WRITES else _RAW_WRITES) and previous not in ("FOR", "KEY"):
                verb = word
        elif is_name and (not name or previous == "."):
            name = str(token.value).strip('"`[]')  # without the schema
        elif name and word != ".":
            break
        previous = word
    return verb, name
