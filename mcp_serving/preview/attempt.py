"""One run of a tool in a transaction: for a preview, or for good if it does what the preview showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from mcp_serving import current_request
from mcp_serving.preview.changes import Run, changes, digest
from mcp_serving.preview.mail import held_mail
from mcp_serving.preview.recording import recording
from mcp_serving.preview.wording import lines


@dataclass(frozen=True)
class Attempt:
    """What one run did.

    Attributes:
        lines: its changes in words, at most 20 lines.
        digest: of its changes; equal for two runs that do the same.
        committed: False if everything was rolled back.
        result: of the function; None if it was rolled back.
    """

    lines: tuple[str, ...]
    digest: str
    committed: bool
    result: Any = None


class _RollBack(Exception):
    """Leaves the transactions without a commit."""


def attempt(function: Callable[..., Any], /, *, expected: str | None = None, **arguments: Any) -> Attempt:
    """Run a sync function in a transaction of each database, and describe its changes.

    Args:
        function: the tool; the code that it runs sees ``is_preview()`` without ``expected``.
        expected: the digest of a preview. If the run does the same, it is committed. Otherwise, and without a
            digest, it is rolled back.
        **arguments: of the function.

    Raises:
        Exception: whatever the function raised; everything is rolled back then.
    """
    done: Attempt | None = None
    start = datetime.now(UTC)
    with held_mail() as mails:
        try:
            with _transactions():
                with recording(_databases()) as recorded, current_request.updated(is_preview=expected is None):
                    result = function(**arguments)
                end = datetime.now(UTC)
                found = changes(recorded)
                recipients = [list(message.recipients()) for _, message in mails]
                made = digest(recorded, found, Run(start, end), recipients)
                done = Attempt(tuple(lines(recorded, found, recipients)), made, made == expected)
                if not done.committed:
                    raise _RollBack
        except _RollBack:
            assert done is not None
            return done
    for send, _ in mails:
        send()
    assert done is not None
    return Attempt(done.lines, done.digest, committed=True, result=result)


@contextmanager
def _transactions() -> Iterator[None]:
    with ExitStack() as stack:
        for alias in _databases():
            stack.enter_context(transaction.atomic(using=alias))
        yield


def _databases() -> list[str]:
    """The databases of the project; a ``default`` that is left empty is none."""
    return [alias for alias in connections if connections.settings[alias]["ENGINE"] != "django.db.backends.dummy"]


def check_transactions(tool: str) -> None:
    """Refuse databases that cannot roll back.

    Raises:
        ImproperlyConfigured: names the tool, and the database or the tables.
    """
    for alias in _databases():
        try:
            without = _tables_without_transactions(connections[alias])
            has_transactions = connections[alias].features.supports_transactions
        except DatabaseError:  # MySQL is asked for it, and may be down
            continue
        if has_transactions and not without:
            continue
        tables = f"table {', '.join(map(repr, without))} of the " if has_transactions else ""
        raise ImproperlyConfigured(
            f"The tool {tool!r} has preview=True, but the {tables}database {alias!r} has no transactions and cannot "
            "roll a preview back. Use an engine with transactions (InnoDB for MySQL), or remove preview=True."
        )


def _tables_without_transactions(connection: BaseDatabaseWrapper) -> list[str]:
    """The tables of models that MySQL keeps in an engine without transactions, such as MyISAM."""
    if connection.vendor != "mysql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables JOIN information_schema.engines USING (engine) "
            "WHERE table_schema = DATABASE() AND transactions = 'NO'"
        )
        found = {name for (name,) in cursor.fetchall()}
    models = apps.get_models(include_auto_created=True)
    return sorted(found.intersection(each._meta.db_table for each in models))
