"""The console without an event loop of its own, and its rules of access."""

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.project.settings_with_console")

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()


def only_bob(user: Any) -> bool:
    return str(user) == "bob"


def everybody(user: Any) -> bool:
    return bool(user.is_authenticated)
