"""The ASGI scope of a relayed request, in a form that a channel layer can carry.

The request, its user, its bearer token, the active language and time zone, and every entry of plain data arrive in
the worker that has the session. Other objects, and context variables, do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django.apps import apps
from django.conf import settings
from django.db.models import Model
from django.utils import timezone, translation
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from mcp_serving import instruments
from mcp_serving.threads import async_orm_thread

if TYPE_CHECKING:
    from starlette.types import Scope

MISSING = "mcp_serving.missing"
"""The scope entry of a relayed request with the names of the entries that could not be carried."""

MOUNT = "mcp_serving.mount"
"""The scope entry with the number of the mount whose middleware has run."""

_OWN = {"type", "asgi", "extensions", "headers", "user", "auth", "session", "app", "router", "endpoint", "route"}
"""The entries that are carried in another form, or that belong to the web server or to Starlette."""


def serialize(scope: Scope) -> dict[str, Any]:
    """The scope of a request, with its user and its bearer token, in a form that a channel layer can carry."""
    entries: dict[str, Any] = {}
    missing = []
    for name, value in scope.items():
        if name in _OWN or (name.startswith("mcp_serving.") and name != MOUNT):
            continue
        if _is_plain(value):
            entries[name] = value
        else:
            missing.append(name)
    serialized: dict[str, Any] = {"entries": entries, "headers": [list(header) for header in scope["headers"]]}
    if (token := get_access_token()) is not None:
        serialized["token"] = token.model_dump_json()
    if (key := getattr(scope.get("session"), "session_key", None)) is not None:
        serialized["session"] = key
    user = scope.get("user")
    if user is not None and not isinstance(user, AuthenticatedUser):
        if not user.is_authenticated:
            serialized["user"] = None
        elif isinstance(user, Model):  # also for the LazyObject that Channels puts around a user
            serialized["user"] = [user._meta.label, str(user.pk)]
        else:
            missing.append("user")
    language, zone = translation.get_language(), getattr(timezone.get_current_timezone(), "key", None)
    if language != settings.LANGUAGE_CODE:
        serialized["language"] = language
    if zone not in (None, settings.TIME_ZONE):
        serialized["time_zone"] = zone
    if missing:
        serialized["missing"] = missing
    if instruments.carriers:
        serialized["carried"] = [carrier.save() for carrier in instruments.carriers]
    return serialized


def _is_plain(value: object) -> bool:
    """Whether every channel layer can carry a value."""
    if value is None or isinstance(value, str | bytes | bool | float):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return False


async def deserialize(serialized: dict[str, Any]) -> Scope:
    """The scope that was given to ``serialize``. The running task gets the token, the language and the time zone.

    The user is loaded from the database. A user that was deleted in the meantime becomes anonymous.
    """
    scope: Scope = {
        **serialized["entries"],
        "type": "http",
        "asgi": {"version": "3.0"},
        "extensions": {},
        "headers": [tuple(header) for header in serialized["headers"]],
        MISSING: serialized.get("missing", []),
    }
    for name in ("client", "server"):
        if scope.get(name) is not None:
            scope[name] = tuple(scope[name])
    if "session" in serialized:
        scope["session"] = import_module(settings.SESSION_ENGINE).SessionStore(serialized["session"])
    if "token" in serialized:
        token = AccessToken.model_validate_json(serialized["token"])
        scope["user"] = AuthenticatedUser(token)
        scope["auth"] = AuthCredentials(token.scopes)
        auth_context_var.set(scope["user"])
    if "user" in serialized:
        scope["user"] = _anonymous() if serialized["user"] is None else await _user(*serialized["user"])
    if "language" in serialized:
        language = serialized["language"]
        translation.deactivate_all() if language is None else translation.activate(language)
    if "time_zone" in serialized:
        timezone.activate(ZoneInfo(serialized["time_zone"]))
    for carrier, carried in zip(instruments.carriers, serialized.get("carried", ()), strict=False):
        carrier.restore(carried)
    return scope


def missing_entries(scope: Scope) -> list[str]:
    """The entries that a relayed request had in the other worker, and that it does not have here."""
    return [name for name in scope.get(MISSING, ()) if name not in scope]


async def _user(label: str, key: str) -> Any:
    model: Any = apps.get_model(label)
    with async_orm_thread():
        try:
            return await model._base_manager.aget(pk=key)
        except model.DoesNotExist:
            return _anonymous()


def _anonymous() -> Any:
    from django.contrib.auth.models import AnonymousUser

    return AnonymousUser()
