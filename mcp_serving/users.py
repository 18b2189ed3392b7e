"""Who calls: the Django user of the MCP request that is being handled."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from mcp_serving import current_request

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser


def get_user() -> AbstractBaseUser | AnonymousUser:
    """The Django user that calls the tool, resource or prompt which is running.

    Over HTTP it is ``scope["user"]``, which ``AuthMiddlewareStack`` and other middleware fill; over stdio
    the one that ``runmcp --user NAME`` names. Everywhere else, and where nobody is logged in, it is an
    ``AnonymousUser``. For sync and async code.

    Raises:
        ImproperlyConfigured: the project has no ``django.contrib.auth``.

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


def logged_in_user() -> AbstractBaseUser | None:
    """The user who calls, unless that is nobody; also in projects without ``django.contrib.auth``."""
    user = _user_of_request()
    return user if user is not None and user.is_authenticated else None


def _user_of_request() -> AbstractBaseUser | None:
    current = current_request.get()
    http_request = current.mcp_context.request if current.mcp_context is not None else None
    user = http_request.scope.get("user") if http_request is not None else current.local_user
    # Not every "user" in a scope is Django's: the SDK's own middleware puts its class there, Starlette's.
    return cast("AbstractBaseUser", user) if hasattr(user, "is_anonymous") else None


def is_of_the_process(user: Any) -> bool:
    """Whether one object stands for the user as long as the process lives, and may be out of date by now.

    Over HTTP each request brings a new one. One that was never saved, as a test may have it, is not out of date.
    """
    request = current_request.get().mcp_context
    return (request is None or request.request is None) and hasattr(user, "_state") and not user._state.adding


def without_cached_permissions(user: AbstractBaseUser) -> AbstractBaseUser:
    """The user for one request: Django's backends keep permissions on the object, for as long as it lives.

    Over HTTP each request brings a new one. Where one object stands for the life of the process, what was
    granted or revoked meanwhile would not be seen.
    """
    fresh = copy.copy(user)
    for cache in ("_perm_cache", "_user_perm_cache", "_group_perm_cache"):
        vars(fresh).pop(cache, None)
    return fresh
