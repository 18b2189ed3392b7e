"""The ``MCP_SERVING`` setting: its keys, their defaults, and what is wrong with their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from mcp_serving.errors import InvalidShutdownTimeout
from mcp_serving.transport import Transport

DEFAULT_SHUTDOWN_TIMEOUT = 10.0


@dataclass(frozen=True)
class Configuration:
    """``MCP_SERVING`` with its defaults. The dotted paths are not imported."""

    server: str | None = None
    http_server: str | None = None
    transport: Transport = Transport.STDIO
    shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT
    shutdown_delay: float = 0.0
    channel_layer: str | None = None
    preview_mask: tuple[str, ...] = ()
    console_access: str | None = None
    rate_limit_storage: str = "memory://"
    rate_limit_on_outage: str = "allow"
    trace_users: bool = False
    call_retention_days: int = 90


@cache
def configuration() -> Configuration:
    """The validated setting: read once, and again after Django's signal ``setting_changed``.

    Raises:
        ImproperlyConfigured: the first problem of the setting.
    """
    if found := problems():
        raise ImproperlyConfigured(found[0])
    given = getattr(settings, "MCP_SERVING", {})
    return Configuration(**{key.lower(): _VALIDATORS[key](given[key]) for key in given})


def _read_again(*, setting: str, **_: Any) -> None:
    if setting in ("MCP_SERVING", "CHANNEL_LAYERS"):
        configuration.cache_clear()


setting_changed.connect(_read_again)


def problems() -> list[str]:
    """Each problem of ``MCP_SERVING`` in one line. Imports nothing: whether a path exists is not checked here."""
    given = getattr(settings, "MCP_SERVING", {})
    if not isinstance(given, dict):
        return [f"MCP_SERVING is {given!r}; it must be a dict. Allowed keys: {_listed(KEYS)}."]
    found = []
    for key, value in given.items():
        if key not in _VALIDATORS:
            close = get_close_matches(str(key).upper(), KEYS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            found.append(f"MCP_SERVING has an unknown key {key!r}. Allowed keys: {_listed(KEYS)}.{hint}")
            continue
        try:
            _VALIDATORS[key](value)
        except ValueError as error:
            found.append(f"MCP_SERVING[{key!r}]: {error}")
    return found


def dotted_path(value: object) -> str:
    """``value``, if it has the form of a dotted path to an object in a module.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        raise ValueError(f"{value!r} is not a dotted path such as 'project.mcp.server'.")
    if "." not in value:
        raise ValueError(f"{value!r} names no module; it must be a dotted path such as 'project.mcp.server'.")
    return value


def valid_shutdown_timeout(value: object) -> float:
    """``value`` as seconds.

    Raises:
        InvalidShutdownTimeout: it is negative, not finite or not a number.
    """
    return _seconds("timeout", value)


def valid_shutdown_delay(value: object) -> float:
    """The same for the delay before the shutdown."""
    return _seconds("delay", value)


def _seconds(name: str, value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]  # raises for everything that is not a number
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidShutdownTimeout(
            f"The shutdown {name} is {value!r}; it must be a number of seconds, finite and not negative."
        )
    return seconds


def _configured_layer(value: object) -> str:
    known = getattr(settings, "CHANNEL_LAYERS", {})
    if not isinstance(value, str) or value not in known:
        allowed = f"one of {_listed(known)}" if known else "one of CHANNEL_LAYERS, which is empty"
        raise ValueError(f"{value!r} is not a channel layer; it must be {allowed}.")
    return value


def _storage_uri(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z+]*://.*", value):
        shown = "A value without a scheme" if isinstance(value, str) else repr(value)  # it may have a password
        raise ValueError(
            f"{shown} is not a storage; it must be 'memory://', or a URI such as 'redis://127.0.0.1:6379/0'."
        )
    return value


def _allow_or_refuse(value: object) -> str:
    if value not in ("allow", "refuse"):
        raise ValueError(f"{value!r} must be 'allow' or 'refuse'.")
    return str(value)


def _true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} must be True or False.")
    return value


def _days(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 36500:
        raise ValueError(f"{value!r} must be a number of days from 1 to 36500.")
    return value


def _field_paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each.count(".") == 2 for each in value):
        raise ValueError(f"{value!r} must be a list of fields such as 'shop.Customer.email'.")
    return tuple(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


_VALIDATORS: dict[str, Callable[[Any], Any]] = {
    "SERVER": dotted_path,
    "HTTP_SERVER": dotted_path,
    "TRANSPORT": Transport,
    "SHUTDOWN_TIMEOUT": valid_shutdown_timeout,
    "SHUTDOWN_DELAY": valid_shutdown_delay,
    "CHANNEL_LAYER": _configured_layer,
    "PREVIEW_MASK": _field_paths,
    "CONSOLE_ACCESS": dotted_path,
    "RATE_LIMIT_STORAGE": _storage_uri,
    "RATE_LIMIT_ON_OUTAGE": _allow_or_refuse,
    "TRACE_USERS": _true_or_false,
    "CALL_RETENTION_DAYS": _days,
}

KEYS = tuple(_VALIDATORS)
"""The keys that ``MCP_SERVING`` may have."""
