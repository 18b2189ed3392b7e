"""Django in the process of the tests, with users in an SQLite database in a temporary folder."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import django

from mcp_serving.signals import listeners

DATABASE = Path(tempfile.mkdtemp(prefix="mcp-serving-tests-")) / "db.sqlite3"
atexit.register(shutil.rmtree, DATABASE.parent)
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.project.settings_with_calls"  # all apps of the package
os.environ["TEST_SQLITE"] = str(DATABASE)
django.setup()
listeners.clear()  # the process of the tests stores none of its calls

USERS = ["ann", "bob", "clerk", "gone", "root"]
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.project.settings_with_users", "TEST_SQLITE": str(DATABASE)}


def create_users() -> None:
    """ann and bob have no permission. clerk and gone can view users; gone is inactive. root is a superuser."""
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    view = Permission.objects.get(codename="view_user")
    for name in USERS:
        user = User.objects.create_user(name, is_active=name != "gone", is_superuser=name == "root")
        if name in ("clerk", "gone"):
            user.user_permissions.add(view)


def restore_users() -> None:
    from django.contrib.auth.models import User

    User.objects.exclude(username__in=USERS).delete()
    User.objects.update(is_staff=False)


def user(name: str) -> Any:
    """The user, loaded from the database as for a new request."""
    from django.contrib.auth.models import User

    return User.objects.get(username=name)


def close_connections() -> None:
    from django.db import connections

    connections.close_all()
