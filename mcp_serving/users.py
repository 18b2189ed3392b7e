"""Who calls: the Django user of the MCP request that is being handled."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
    from mcp.server.context import ServerRequestContext

current_request: ContextVar[ServerRequestContext[Any, Any] | None] = ContextVar(
    "mcp_serving.current_request", default=None
)
"""The MCP request that is being handled."""

local_user: ContextVar[AbstractBaseUser | None] = ContextVar("mcp_serving.local_user", default=None)
"""Who uses a transport without HTTP requests: ``runmcp --user``, the client for tests."""


def get_user() -> AbstractBaseUser | AnonymousUser:
    """The Django user that calls the tool, resource or prompt which is running.

    Over HTTP it is ``scope["user"]``, which ``AuthMiddlewareStack`` and other middleware fill; over stdio
    the one that ``runmcp --user NAME`` names. Everywhere else, and where nobody is logged in, it is an
    ``AnonymousUser``. For sync and async code.

    Example:
        >>> @server.tool()
        ... def my_orders() -> list[str]:
        ...     return [str(order) for order in Order.objects.filter(customer__user=get_user())]
    """
    request = current_request.get()
    http_request = request.request if request is not None else None
    user = http_request.scope.get("user") if http_request is not None else local_user.get()
    if user is None or not hasattr(user, "has_perm"):
        from django.contrib.auth.models import AnonymousUser

        return AnonymousUser()
    return cast("AbstractBaseUser", user)


async def aget_user() -> AbstractBaseUser | AnonymousUser:
    """``get_user`` for async code that prefers to await: both return at once."""
    return get_user()
