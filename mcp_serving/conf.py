"""The ``MCP_SERVING`` setting: what it may hold, and what is wrong with what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from mcp_serving.errors import InvalidShutdownTimeout
from mcp_serving.loading import cause_of
from mcp_serving.transport import Transport

DEFAULT_SHUTDOWN_TIMEOUT = 10.0


@dataclass(frozen=True)
class Configuration:
    """``MCP_SERVING`` with its defaults: the paths are not imported yet."""

    server: str | None = None
    http_server: str | None = None
    transport: Transport = Transport.STDIO
    shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT
    channel_layer: str | None = None


def configuration() -> Configuration:
    """What the settings say.

    Raises:
        ImproperlyConfigured: the first thing that is wrong with them.
    """
    if found := problems():
        raise ImproperlyConfigured(found[0])
    given = getattr(settings, "MCP_SERVING", {})
    return Configuration(**{key.lower(): _KEYS[key](given[key]) for key in given})


def problems() -> list[str]:
    """Each thing that is wrong with ``MCP_SERVING``, a line each; imports none of the paths."""
    given = getattr(settings, "MCP_SERVING", {})
    if not isinstance(given, dict):
        return [f"MCP_SERVING is {given!r}; it has to be a dict with keys among {_listed(_KEYS)}."]
    found = []
    for key, value in given.items():
        if key in _ELSEWHERE:
            found.append(f"MCP_SERVING[{key!r}] does not exist: {_ELSEWHERE[key]}.")
            continue
        if key not in _KEYS:
            close = get_close_matches(str(key).upper(), _KEYS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            found.append(f"MCP_SERVING has an unknown key {key!r}; allowed are {_listed(_KEYS)}.{hint}")
            continue
        try:
            _KEYS[key](value)
        except ValueError as error:
            found.append(f"MCP_SERVING[{key!r}]: {error}")
    return found


def dotted_path(value: object) -> str:
    """``value`` if it reads like a dotted path to something in a module that exists.

    Raises:
        ValueError: it does not.
    """
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        raise ValueError(f"{value!r} is not a dotted path such as 'project.mcp.server'.")
    module, _, _ = value.rpartition(".")
    if not module:
        raise ValueError(f"{value!r} names no module; it has to be a dotted path such as 'project.mcp.server'.")
    try:
        exists = find_spec(module) is not None
    except Exception as error:  # a parent package that fails to import
        raise ValueError(f"{value!r} cannot be imported: {cause_of(error)}.") from error
    if not exists:
        raise ValueError(f"{value!r} cannot be imported: there is no module {module!r}.")
    return value


def valid_shutdown_timeout(value: object) -> float:
    """``value`` as seconds.

    Raises:
        InvalidShutdownTimeout: it is negative, not finite or not a number.
    """
    try:
        seconds = float(value)  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidShutdownTimeout(
            f"The shutdown timeout is {value!r}; it has to be a number of seconds, finite and not negative."
        )
    return seconds


def configured_layer(value: object) -> str:
    """``value`` if it is the name of a channel layer that the settings have.

    Raises:
        ValueError: it is not.
    """
    known = getattr(settings, "CHANNEL_LAYERS", {})
    if not isinstance(value, str) or value not in known:
        allowed = f"one of {_listed(known)}" if known else "one of CHANNEL_LAYERS, which has none"
        raise ValueError(f"{value!r} is not a channel layer; it has to be {allowed}.")
    return value


_KEYS: dict[str, Callable[[Any], Any]] = {
    "SERVER": dotted_path,
    "HTTP_SERVER": dotted_path,
    "TRANSPORT": Transport.parse,
    "SHUTDOWN_TIMEOUT": valid_shutdown_timeout,
    "CHANNEL_LAYER": configured_layer,
}


# A key that is renamed or removed moves here: it is an error that says what took its place.
_ELSEWHERE = {
    "ALLOWED_HOSTS": "Django's own ALLOWED_HOSTS says which hosts may be asked for",
    "ALLOWED_ORIGINS": "Django's own CSRF_TRUSTED_ORIGINS says which origins may call",
    "CONFIRM_WRITES": "a write_tool always asks; declare it with tool() if it is not to",
    "LOGIN_REQUIRED": "StreamableHTTPHandler(login_required=True) says who may call",
    "MAX_THREADS": "MCPServer(max_threads=...) says how many sync functions run at once",
}


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(map(repr, names))
