"""The Django user of the current MCP request."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, ValidationError

from mcp_serving import current_request

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

    from mcp_serving.current_request import CurrentRequest


def get_user() -> AbstractBaseUser | AnonymousUser:
    """The Django user who calls the running tool, resource or prompt; for sync and async code.

    Over HTTP it is ``scope["user"]``, which ``AuthMiddlewareStack`` and other middleware fill. Over stdio it is
    the user that ``runmcp --user NAME`` names. Otherwise, and if nobody is logged in, it is an ``AnonymousUser``.

    Raises:
        ImproperlyConfigured: ``django.contrib.auth`` is not installed.

    Example:
        >>> @server.tool()
        ... def my_orders() -> list[str]:
        ...     return [str(order) for order in Order.objects.filter(customer__user=get_user())]
    """
    user = _user_of_request()
    if user is not None:
        return user
    if not apps.is_installed("django.contrib.auth"):
        raise ImproperlyConfigured("Users and permissions need 'django.contrib.auth' in INSTALLED_APPS.")
    from django.contrib.auth.models import AnonymousUser

    return AnonymousUser()


def user_by_name(name: str) -> AbstractBaseUser | None:
    """The user with this value of ``USERNAME_FIELD``; None if there is none.

    Raises:
        django.db.DatabaseError: the query failed.
    """
    from django.contrib.auth import get_user_model

    model = get_user_model()
    try:
        return model._default_manager.get_by_natural_key(name)
    except (model.DoesNotExist, ValidationError, ValueError):  # the last two if a UUID, for example, is malformed
        return None


def logged_in_user() -> AbstractBaseUser | None:
    """The user of the current request, or None; also in projects without ``django.contrib.auth``."""
    return _if_logged_in(_user_of_request())


def _user_of_request() -> AbstractBaseUser | None:
    current = current_request.get()
    return _user_of(current, current.mcp_context.request if current.mcp_context is not None else None)


def _user_of(current: CurrentRequest, http_request: Any) -> AbstractBaseUser | None:
    user = http_request.scope.get("user") if http_request is not None else current.local_user
    # A scope may hold another kind of user: the SDK's own middleware puts its class there, which is Starlette's.
    return cast("AbstractBaseUser", user) if hasattr(user, "is_anonymous") else None


def user_of(current: CurrentRequest, http_request: Any) -> AbstractBaseUser | None:
    """The logged-in user of a request whose MCP context is not set yet; None for an anonymous caller."""
    return _if_logged_in(_user_of(current, http_request))


def _if_logged_in(user: AbstractBaseUser | None) -> AbstractBaseUser | None:
    return user if user is not None and user.is_authenticated else None


def is_user_of_process(user: Any) -> bool:
    """Whether ``user`` is one object for the life of the process, which may be out of date.

    Over HTTP each request brings a new object. An object that was never saved, as in a test, is not out of date.
    """
    request = current_request.get().mcp_context
    return (request is None or request.request is None) and hasattr(user, "_state") and not user._state.adding


def without_cached_permissions(user: AbstractBaseUser) -> AbstractBaseUser:
    """A copy of the user for one request.

    Django's backends cache permissions on the object. If one object serves the whole process, a permission that
    was granted or revoked later would not be seen.
    """
    fresh = copy.copy(user)
    for cache in ("_perm_cache", "_user_perm_cache", "_group_perm_cache"):
        vars(fresh).pop(cache, None)
    return fresh
