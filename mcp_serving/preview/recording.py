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
from django.db.models.sql import Query

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MAX_ROWS = 200
"""Rows that a recording reads. The rows beyond are counted, so that a large update costs no memory."""

_SQL_READ = 2000
"""Characters of a raw SQL statement that are parsed for its kind and table: sqlparse takes 1 ms for each 1,000."""

_BATCH = 500
"""Values in one ``IN (...)``: SQLite had a limit of 999."""

_RAW_WRITES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "TRUNCATE", "CREATE", "ALTER", "DROP"}

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
        uncounted: rows beyond the first 200, as numbers for each table and kind of statement.
        raw: rows that raw SQL wrote, for each database, kind of statement and table; None: the number is unknown.
    """

    rows: dict[tuple[Table, Any], Row] = field(default_factory=dict)
    links: dict[tuple[Table, Link], LinkChange] = field(default_factory=dict)
    counted: Counter[tuple[Table, str]] = field(default_factory=Counter)
    raw: Counter[tuple[str, str, str]] = field(default_factory=Counter)


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

    @contextmanager
    def installed(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """Use compilers that report to this recorder, on this connection alone."""
        compiler: Callable[[str], type] = connection.ops.compiler
        setattr(connection.ops, "compiler", lambda name: self._reporting(compiler(name)))  # noqa: B010 - one object's
        try:
            with connection.execute_wrapper(self._raw_statement):
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
            self._note(table, "update", _replaced(table, query.objs[:MAX_ROWS], query.unique_fields))
        returned = self._executed(execute)
        keys = list(_inserted_keys(query.objs, compiler.returning_fields, returned))
        for pk in keys:
            if pk is not None and len(self.result.rows) < MAX_ROWS:
                self.result.rows.setdefault((table, pk), Row(table, pk, before=None))
        beyond = sum(pk is None or (table, pk) not in self.result.rows for pk in keys)
        if beyond:
            self.result.counted[table, "insert"] += beyond
        return returned

    def _update_or_delete(self, compiler: Any, execute: Callable[[], Any]) -> Any:
        query = compiler.query
        verb = "delete" if "Delete" in type(compiler).__name__ else "update"
        if verb == "update" and not query.values:
            return execute()  # only tables of parent models change: each has a statement of its own
        table = Table(compiler.using, query.model._meta.concrete_model)
        affected = _rows_of(query, compiler.using)
        instances = list(affected[: MAX_ROWS + 1])
        if table.model._meta.auto_created:
            self._note_links(table, [_link_of(each) for each in instances])
        elif len(instances) > MAX_ROWS or len(self.result.rows) + len(instances) > MAX_ROWS:
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

    def _note(self, table: Table, verb: str, instances: Iterable[Model]) -> None:
        for instance in instances:
            if len(self.result.rows) < MAX_ROWS:
                self.result.rows.setdefault((table, instance.pk), Row(table, instance.pk, before=instance))
            else:
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

    def _raw_statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if not self._in_orm_statement and sql.lstrip("( \n\t")[:6].upper() != "SELECT":
            kind, table = _kind_and_table(sql)
            if kind in _RAW_WRITES:
                rows = max(0, context["cursor"].rowcount)
                self.result.raw[context["connection"].alias, kind.lower(), table] += rows
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


_COMPILERS = "django.db.models.sql.compiler"


def _rows_of(query: Any, using: str) -> QuerySet[Model]:
    """The rows that an UPDATE or DELETE statement affects."""
    select = query.chain(klass=Query)
    select.clear_ordering(force=True)
    select.clear_limits()
    select.clear_select_clause()
    select.default_cols = True
    return QuerySet(model=query.model, query=select, using=using)


def _replaced(table: Table, objects: Sequence[Model], unique_fields: Sequence[Any]) -> QuerySet[Model]:
    """The rows that an INSERT ... ON CONFLICT updates."""
    fields = list(unique_fields) or [table.model._meta.pk]
    same = [Q(**{each.attname: getattr(instance, each.attname) for each in fields}) for instance in objects]
    return table.model._base_manager.using(table.database).filter(reduce(or_, same))


def _inserted_keys(objects: Sequence[Model], returning: Sequence[Any] | None, rows: Sequence[Any]) -> Iterator[Any]:
    """The primary key of each inserted object; None where the database did not tell it."""
    names = [each.attname for each in returning or ()]
    for number, instance in enumerate(objects):
        pk = instance._meta.pk
        name = pk.attname if pk is not None else ""
        if name in names and number < len(rows):
            yield rows[number][names.index(name)]
        else:
            value = instance.pk
            yield None if hasattr(value, "resolve_expression") else value


def _ends(through: type[Model]) -> tuple[str, str]:
    """The two foreign keys of an automatic many-to-many table."""
    first, second = (each.attname for each in through._meta.concrete_fields if each.is_relation)
    return first, second


def _link_of(row: Model) -> Link:
    first, second = _ends(type(row))
    return getattr(row, first), getattr(row, second)


def _kind_and_table(sql: str) -> tuple[str, str]:
    """What a raw statement does, and to which table: ``("UPDATE", "shop_order")``."""
    parsed: Any = sqlparse.parse(sql[:_SQL_READ])
    if not parsed:
        return "", ""
    kind = str(parsed[0].get_type() or "")
    if kind == "UNKNOWN":
        first = parsed[0].token_first(skip_cm=True)
        kind = first.normalized.upper() if first is not None else ""
    return kind, _name_in(parsed[0])


def _name_in(statement: Any) -> str:
    """The table of a parsed statement: the first name after its verb, so not the name of a WITH clause."""
    after_verb = False
    for token in statement.flatten():
        after_verb = (
            after_verb
            or token.ttype in (sqlparse.tokens.DML, sqlparse.tokens.DDL)
            or (token.is_keyword and (token.normalized.upper() in _RAW_WRITES))
        )
        if after_verb and token.ttype in (sqlparse.tokens.Name, sqlparse.tokens.Literal.String.Symbol):
            return str(token.value).strip('"`[]')
    return ""
