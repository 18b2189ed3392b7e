"""The ASGI scope of a relayed request, in a form that a channel layer can carry: the request and its user."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.db.models import Model
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from mcp_serving.threads import async_orm_thread

if TYPE_CHECKING:
    from starlette.types import Scope

_REQUEST = ("http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "client", "server")
"""The entries of a scope that belong to the request, and that every channel layer can carry."""


class UserNotSerializable(TypeError):
    """The user in the scope is not a model's instance, so that another worker cannot load it."""


def serialize(scope: Scope) -> dict[str, Any]:
    """The scope of a request, with its user and its bearer token, in a form that a channel layer can carry.

    Raises:
        UserNotSerializable: the user is not anonymous, not an instance of a model, and not the SDK's.
    """
    serialized: dict[str, Any] = {name: scope[name] for name in _REQUEST if scope.get(name) is not None}
    serialized["headers"] = [list(header) for header in scope["headers"]]
    if (token := get_access_token()) is not None:
        serialized["token"] = token.model_dump_json()
    if (key := getattr(scope.get("session"), "session_key", None)) is not None:
        serialized["session"] = key
    user = scope.get("user")
    if user is not None and not isinstance(user, AuthenticatedUser):
        serialized["user"] = _label_and_key(user) if user.is_authenticated else None
    return serialized


def _label_and_key(user: Any) -> list[str]:
    # isinstance() also recognises the LazyObject that Channels puts around a user.
    if not isinstance(user, Model):
        raise UserNotSerializable(
            f"scope['user'] is a {type(user).__module__}.{type(user).__qualname__}, which another worker cannot load; "
            "put an instance of a Django model there"
        )
    return [user._meta.label, str(user.pk)]


async def deserialize(serialized: dict[str, Any]) -> Scope:
    """The scope that was given to ``serialize``. The running task gets the request's bearer token.

    The user is loaded from the database. A user that was deleted in the meantime becomes anonymous.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "extensions": {},
        **{name: serialized[name] for name in _REQUEST if name in serialized},
        "headers": [tuple(header) for header in serialized["headers"]],
    }
    for name in ("client", "server"):
        if name in scope:
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
    return scope


async def _user(label: str, key: str) -> Any:
    model: Any = apps.get_model(label)
    async with async_orm_thread():
        try:
            return await model._base_manager.aget(pk=key)
        except model.DoesNotExist:
            return _anonymous()


def _anonymous() -> Any:
    from django.contrib.auth.models import AnonymousUser

    return AnonymousUser()
