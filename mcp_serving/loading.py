"""Importing the objects that the settings name, and the ``mcp`` modules of apps. Each error is one line."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
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
        loaded = module_loading.import_string(path)
    except Exception as error:
        if _is_module(path):
            raise ImproperlyConfigured(_names_a_module(path)) from error
        raise ImproperlyConfigured(f"{path!r} cannot be imported: {cause_of(error)}.") from error
    if isinstance(loaded, ModuleType):
        raise ImproperlyConfigured(_names_a_module(path))
    return loaded


def _is_module(path: str) -> bool:
    try:
        return find_spec(path) is not None
    except Exception:  # its package is a module itself, or fails to import
        return False


def _names_a_module(path: str) -> str:
    return f"{path!r} is a module: name the object in the module, such as '{path}.server'."


def load_server(path: str) -> Any:
    """The MCP server at a dotted path. A callable there is called, and returns the server.

    Raises:
        ImproperlyConfigured: the path cannot be imported, or the callable failed.
        ImproperlyConfigured: a tool needs a database with transactions, and there is one without.
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
    if (check := getattr(server, "check_databases", None)) is not None:  # of mcp_serving.MCPServer
        check()
    return server


_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def cause_of(error: Exception) -> str:
    """An exception in one line, with the file and line in the project's code where it was raised."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    text = in_one_line(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    in_project = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    for frame in (in_project or frames)[-1:]:
        if frame.filename not in text:
            return f"{text} ({frame.filename}, line {frame.lineno})"
    return text


def in_one_line(error: Exception) -> str:
    """An exception for a log line: its class and its text, without a full stop at the end."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ").removesuffix(".")


def _is_library(filename: str) -> bool:
    """Whether a frame belongs to this package, to Django or to Python's import system."""
    return (
        not {Path(__file__).parent, Path(django.__file__).parent}.isdisjoint(Path(filename).parents)
        or "importlib" in filename
        or filename.startswith("<")  # generated code, such as a dataclass's __init__
    )


_failed: dict[str, str] = {}
"""The modules that ``discover`` could not import, with the error of each in one line."""


def discover() -> None:
    """Import the ``mcp`` module of each installed app that has one, as the admin does with ``admin``.

    It is called when a server is needed, not when Django starts: importing the SDK takes most of a second, which
    ``migrate`` should not pay.

    Raises:
        ImproperlyConfigured: a module cannot be imported; the message has the cause, its file and its line. It is not
            imported again by a later call: the tools that it had registered before it failed would be "taken already".
    """
    for config in apps.get_app_configs() if apps.ready else ():
        name = f"{config.name}.mcp"
        if (
            name not in _failed
            and name not in sys.modules
            and module_loading.module_has_submodule(config.module, "mcp")
        ):
            try:
                import_module(name)
            except Exception as error:
                _failed[name] = f"The module {name!r} of an installed app cannot be imported: {cause_of(error)}."
                raise ImproperlyConfigured(_failed[name]) from error
        if name in _failed:
            raise ImproperlyConfigured(_failed[name])
