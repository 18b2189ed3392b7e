"""The Daphne server that ``runmcp ADDRESS`` builds around ``ASGI_APPLICATION``, as ``runserver`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError

from mcp_serving import loading

if TYPE_CHECKING:
    from mcp_serving.daphne import Server


def builder_at(address: str) -> Callable[[], Server]:
    """A callable that builds the Daphne server for an address.

    Args:
        address: ``PORT``, ``ADDRESS:PORT`` or ``[IPV6]:PORT``. Without an address it is 127.0.0.1.

    Raises:
        CommandError: it is not an address, or ``ASGI_APPLICATION`` is not set.
        ImproperlyConfigured: ``ASGI_APPLICATION`` cannot be imported.
    """
    endpoint = _endpoint(address)
    application = _application()

    def build() -> Server:
        from mcp_serving.daphne import Server

        return Server(application, endpoints=[endpoint])

    return build


def _endpoint(address: str) -> str:
    """The address in Twisted's notation."""
    host, _, port = address.rpartition(":")
    is_ipv6 = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal()) or (":" in host and not is_ipv6) or (not host and ":" in address):
        raise CommandError(
            f"{address!r} is not an address; it must be PORT, ADDRESS:PORT or [IPV6]:PORT, such as 8000 or "
            "0.0.0.0:8000."
        )
    host = host.strip("[]").replace(":", r"\:") or "127.0.0.1"
    return f"tcp:port={port}:interface={host}"


def _application() -> Any:
    path = getattr(settings, "ASGI_APPLICATION", None)
    if path is None:
        raise CommandError(
            "ASGI_APPLICATION is not set; it must be the path of the application, such as 'mysite.asgi.application'."
        )
    application = loading.load(path)
    if settings.DEBUG and apps.is_installed("django.contrib.staticfiles"):
        from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

        return ASGIStaticFilesHandler(application)
    return application
