from __future__ import annotations

from django.apps import apps
from django.utils.module_loading import autodiscover_modules


def discover() -> None:
    """Import the ``mcp`` module of each installed app that has one, as the admin does with ``admin``.

    Only when a server is wanted: importing the SDK takes most of a second, which ``migrate`` should not pay.
    An error in such a module is raised.
    """
    if apps.ready:
        autodiscover_modules("mcp")
