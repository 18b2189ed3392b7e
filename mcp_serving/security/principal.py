"""The principal of a request: its user, its bearer token, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import Model
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components

if TYPE_CHECKING:
    from starlette.types import Scope


def principal(scope: Scope) -> str | None:
    """A text that is different for each user and each token; None for an anonymous request.

    The current task must be the one in which the SDK's middleware has read the token.
    """
    token = get_access_token()
    user = scope.get("user")
    if token is None and user is None:
        return None
    is_known = user is not None and user.is_authenticated and not isinstance(user, AuthenticatedUser)
    parts = [None if token is None else principal_components(token), user_identity(user) if is_known else None]
    return repr(parts) if any(part is not None for part in parts) else None


def user_identity(user: Any) -> tuple[str, str]:
    """A model's name and a key for a Django user; for any other user object, its class and its name."""
    if isinstance(user, Model):  # also for the LazyObject that Channels puts around a user
        model: Any = user._meta.concrete_model  # a proxy stands for the same user
        return model._meta.label, str(user.pk)
    kind = user.__class__
    name = getattr(user, "pk", None) or getattr(user, "display_name", None) or repr(user)
    return f"{kind.__module__}.{kind.__qualname__}", str(name)
