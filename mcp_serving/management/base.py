"""What the package's commands share: errors in one line, the hint at migrations, and the user of an option."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections

from mcp_serving import errors, loading
from mcp_serving.users import user_by_name

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

USER_MISTAKES = (
    ImproperlyConfigured,
    errors.AccessNotStated,
    errors.InvalidEndpoint,
    errors.InvalidHTTPServer,
    errors.InvalidServer,
    errors.InvalidShutdownTimeout,
    errors.InvalidTransport,
    errors.ListenError,
    errors.NoApplication,
    errors.NoHTTPServer,
    errors.ReactorHasRun,
    errors.ShutdownTimeout,
)
"""Reported in one line, without a traceback."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    try:
        yield
    except USER_MISTAKES as error:
        raise CommandError(" ".join(str(error).split())) from error
    except DatabaseError as error:  # of the server's lifespan
        problem = f"The database cannot be used: {loading.cause_of(error)}."
        raise CommandError(f"{problem} {unapplied_migrations()}".strip()) from error


def unapplied_migrations() -> str:
    """The hint of ``runserver`` in one line; empty if all migrations are applied, or the database cannot tell."""
    hint = StringIO()
    try:
        BaseCommand(stdout=hint, no_color=True).check_migrations()
    except Exception as error:  # the tools report the same error
        logger.debug("The migrations cannot be checked (%s).", loading.in_one_line(error))
    return " ".join(hint.getvalue().split())


@contextmanager
def hint_for_tracebacks(announce: Callable[[str], None]) -> Iterator[None]:
    """If migrations are unapplied, the hint is printed instead of the tracebacks of database errors in the log."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        if record.exc_info is None or not _is_of_database(record.exc_info[1]):
            return True
        if record not in held:
            held.append(record)
        return False

    loggers = (logging.root, *logging.root.manager.loggerDict.values())
    handlers = {logging.lastResort, *(handler for each in loggers for handler in getattr(each, "handlers", ()))} - {
        None
    }
    for handler in handlers:
        handler.addFilter(hold)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(hold)
        if hint := unapplied_migrations() if held else "":
            announce(hint)
        else:
            for record in held:
                logging.getLogger(record.name).handle(record)


def _is_of_database(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, DatabaseError):
        error = error.__cause__ or error.__context__
    return error is not None


def user_named(name: str) -> AbstractBaseUser:
    """The active user that ``--user`` names.

    Raises:
        CommandError: there is no such user, the user is not active, or the database cannot be used.
    """
    if not apps.is_installed("django.contrib.auth"):
        raise CommandError("--user needs 'django.contrib.auth' in INSTALLED_APPS.")
    try:
        user = user_by_name(name)
    except DatabaseError as error:
        problem = f"--user: the user {name!r} cannot be looked up: {loading.cause_of(error)}."
        raise CommandError(f"{problem} {unapplied_migrations()}".strip()) from error
    finally:
        connections.close_all()  # the thread of the event loop makes no further queries
    if user is None:
        raise CommandError(f"--user: there is no user {name!r}.")
    if not user.is_active:
        raise CommandError(f"--user: the user {name!r} is not active.")
    return user
