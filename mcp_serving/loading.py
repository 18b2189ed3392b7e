"""Importing the objects that the settings name, and the ``mcp`` modules of apps. Each error is one line."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils import module_loading

from mcp_serving.errors import InvalidServer


def load(path: str) -> Any:
    """What the dotted path names.

    Raises:
        ImproperlyConfigured: it cannot be imported; names the cause and where it is.
    """
    try:
        return module_loading.import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f"{path!r} cannot be imported: {cause_of(error)}.") from error


def load_server(path: str) -> Any:
    """The MCP server at a dotted path, or what the callable there returns.

    Raises:
        ImproperlyConfigured: the path cannot be imported, or the callable failed.
        InvalidServer: it is not a server of the SDK.
    """
    from mcp_serving import sdk

    server = load(path)
    if callable(server):
        try:
            server = server()
        except Exception as error:
            raise ImproperlyConfigured(f"The callable {path!r} failed: {cause_of(error)}.") from error
    try:
        sdk.low_level(server)
    except InvalidServer as error:
        raise InvalidServer(f"{path!r}: {error}") from None
    discover()
    return server


def cause_of(error: Exception) -> str:
    """An exception in one line, with the place in the user's code that it comes from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _only_imports(frame.filename)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{in_one_line(error)}{where}"


def in_one_line(error: Exception) -> str:
    """An error as a line of the log names it: its class and its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _only_imports(filename: str) -> bool:
    """Whether it is this package, Django's ``import_string`` or Python's import: none of them the user's code."""
    return (
        Path(__file__).parent in Path(filename).parents
        or filename == module_loading.__file__
        or "importlib" in filename
        or filename.startswith("<")  # what a dataclass has for __init__
    )


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
            module_loading.autodiscover_modules("mcp")
        except Exception as error:
            _failure = error
            raise
