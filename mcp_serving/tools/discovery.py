from __future__ import annotations

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

_failure: Exception | None = None


def discover() -> None:
    """Import the ``mcp`` module of each installed app that has one, as the admin does with ``admin``.

    Only when a server is wanted: importing the SDK takes most of a second, which ``migrate`` should not pay.

    Raises:
        Exception: whatever such a module raised. It is raised again each time: Python would import the module
            once more, and what it registered before it failed would then be "taken already".
    """
    global _failure
    if _failure is not None:
        raise _failure
    if apps.ready:
        try:
            autodiscover_modules("mcp")
        except Exception as error:
            _failure = error
            raise
