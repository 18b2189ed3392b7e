"""Importing the objects that the settings name, and the ``mcp`` modules of apps. Each error is one line."""

from __future__ import annotations

import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils import module_loading

from mcp_serving import conf
from mcp_serving.errors import InvalidServer


def settings_problems() -> list[str]:
    """Each problem of ``MCP_SERVING`` in one line, modules that do not exist included. Imports only their packages."""
    if problems := conf.problems():
        return problems
    configuration = conf.configuration()
    paths = {"SERVER": configuration.server, "HTTP_SERVER": configuration.http_server}
    return [
        f"MCP_SERVING[{key!r}]: {problem}"
        for key, path in paths.items()
        if path is not None and (problem := path_problem(path))
    ]


def path_problem(path: str) -> str | None:
    """Why the module of a dotted path cannot be found, in one line; None if it can. Imports only its package."""
    module, _, _ = path.rpartition(".")
    try:
        exists = find_spec(module) is not None
    except Exception as error:  # the package fails to import
        return f"{path!r} cannot be imported: {cause_of(error)}."
    return None if exists else f"{path!r} cannot be imported: there is no module {module!r}."


def load(path: str) -> Any:
    """The object at a dotted path.

    Raises:
        ImproperlyConfigured: it cannot be imported; the message has the cause, its file and its line.
    """
    try:
        return module_loading.import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f"{path!r} cannot be imported: {cause_of(error)}.") from error


def load_server(path: str) -> Any:
    """The MCP server at a dotted path. A callable there is called, and returns the server.

    Raises:
        ImproperlyConfigured: the path cannot be imported, or the callable failed.
        InvalidServer: the object is not a server of the SDK.
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
    """An exception in one line, with the file and line in the project's code where it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{in_one_line(error)}{where}"


def in_one_line(error: Exception) -> str:
    """An exception as a log line names it: its class and its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _is_library(filename: str) -> bool:
    """Whether a frame belongs to this package, to Django or to Python's import system."""
    return (
        not {Path(__file__).parent, Path(django.__file__).parent}.isdisjoint(Path(filename).parents)
        or "importlib" in filename
        or filename.startswith("<")  # generated code, such as a dataclass's __init__
    )


_failure: Exception | None = None


def discover() -> None:
    """Import the ``mcp`` module of each installed app that has one, as the admin does with ``admin``.

    It is called when a server is needed, not when Django starts: importing the SDK takes most of a second, which
    ``migrate`` should not pay.

    Raises:
        Exception: the exception that such a module raised. The same exception is raised on each call: Python would
            import the module again, and the tools that it had registered before it failed would be "taken already".
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
