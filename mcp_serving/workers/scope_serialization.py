"""Who calls, as one worker tells another: what is in an ASGI scope besides the request itself."""

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

from mcp_serving.threads import thread_of_its_own

if TYPE_CHECKING:
    from starlette.types import Scope

_REQUEST = ("http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "client", "server")
"""What of a scope is a request's own, and can be sent."""


class UserNotSerializable(TypeError):
    """The user in the scope is of a kind that another worker could not find again."""


def serialize(scope: Scope) -> dict[str, Any]:
    """The scope of a request, and who calls, as a channel layer can carry it.

    Raises:
        UserNotSerializable: the user is neither anonymous, nor a model's, nor the SDK's.
    """
    told: dict[str, Any] = {name: scope[name] for name in _REQUEST if scope.get(name) is not None}
    told["headers"] = [list(header) for header in scope["headers"]]
    if (token := get_access_token()) is not None:
        told["token"] = token.model_dump_json()
    if (key := getattr(scope.get("session"), "session_key", None)) is not None:
        told["session"] = key
    user = scope.get("user")
    if user is not None and not isinstance(user, AuthenticatedUser):
        told["user"] = _name_of(user) if user.is_authenticated else None
    return told


def _name_of(user: Any) -> list[str]:
    # isinstance() sees through the LazyObject that Channels puts around a user.
    if not isinstance(user, Model):
        raise UserNotSerializable(
            f"{type(user).__module__}.{type(user).__qualname__} is no model, and another worker could not "
            "find it again: put a Django user into scope['user']"
        )
    return [user._meta.label, str(user.pk)]


async def deserialize(told: dict[str, Any]) -> Scope:
    """The scope that ``serialize`` has told of; the running task then acts for its caller.

    A user or a token stays who they were, and a user is looked up anew: who is gone meanwhile is anonymous.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "extensions": {},
        **{name: told[name] for name in _REQUEST if name in told},
        "headers": [tuple(header) for header in told["headers"]],
    }
    for name in ("client", "server"):
        if name in scope:
            scope[name] = tuple(scope[name])
    if "session" in told:
        scope["session"] = import_module(settings.SESSION_ENGINE).SessionStore(told["session"])
    if "token" in told:
        token = AccessToken.model_validate_json(told["token"])
        scope["user"] = AuthenticatedUser(token)
        scope["auth"] = AuthCredentials(token.scopes)
        auth_context_var.set(scope["user"])
    if "user" in told:
        scope["user"] = _anonymous() if told["user"] is None else await _user(*told["user"])
    return scope


async def _user(label: str, key: str) -> Any:
    model: Any = apps.get_model(label)
    async with thread_of_its_own():
        try:
            return await model._base_manager.aget(pk=key)
        except model.DoesNotExist:
            return _anonymous()


def _anonymous() -> Any:
    from django.contrib.auth.models import AnonymousUser

    return AnonymousUser()
