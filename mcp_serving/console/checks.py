from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error

from mcp_serving import conf

NEEDED_APPS = (
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "mcp_serving.console.form_library",
)
NEEDED_MIDDLEWARE = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
)


def check_installation(**_: Any) -> list[CheckMessage]:
    """What the pages of the console need of the project."""
    if find_spec("django_native_jsonform") is None:
        return [
            Error(
                "mcp_serving.console needs django-native-jsonform, which is not installed.",
                hint="pip install 'mcp-serving[console]'",
                id="mcp_console.E001",
            )
        ]
    found: list[CheckMessage] = [
        Error(f"mcp_serving.console needs {app!r} in INSTALLED_APPS.", id="mcp_console.E002")
        for app in NEEDED_APPS
        if not apps.is_installed(app)
    ]
    found += [
        Error(f"mcp_serving.console needs {middleware!r} in MIDDLEWARE.", id="mcp_console.E003")
        for middleware in NEEDED_MIDDLEWARE
        if middleware not in settings.MIDDLEWARE
    ]
    backends = [template["BACKEND"] for template in settings.TEMPLATES]
    if "django.template.backends.django.DjangoTemplates" not in backends:
        found.append(Error("mcp_serving.console needs Django's own templates in TEMPLATES.", id="mcp_console.E004"))
    if not conf.problems() and conf.configuration().server is None:
        found.append(Error("mcp_serving.console shows MCP_SERVING['SERVER'], which is not set.", id="mcp_console.E005"))
    return found
