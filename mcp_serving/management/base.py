"""What the package's commands share: errors in one line, and the user of an option."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from mcp_serving import errors, loading
from mcp_serving.users import user_by_name

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

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
        raise CommandError(f"--user: the user {name!r} cannot be looked up: {loading.cause_of(error)}.") from error
    finally:
        connections.close_all()  # the thread of the event loop makes no further queries
    if user is None:
        raise CommandError(f"--user: there is no user {name!r}.")
    if not user.is_active:
        raise CommandError(f"--user: the user {name!r} is not active.")
    return user
