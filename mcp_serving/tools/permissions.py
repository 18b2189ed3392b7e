"""Who may see and call what: Django permissions on tools, resources and prompts."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.core.exceptions import PermissionDenied
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers

from mcp_serving import current_request
from mcp_serving.param_headers import InputSchemaLookup
from mcp_serving.threads import DjangoThreads, is_async
from mcp_serving.tools.declarations import ValidPermission
from mcp_serving.users import get_user, is_user_of_process, logged_in_user

logger = logging.getLogger(__name__)

_FIRST_WITH_PARAM_HEADERS = "2026-07-28"
"""The first protocol version in which a client may repeat arguments in ``Mcp-Param-*`` headers."""


class Permissions:
    """The permissions that the tools, the resources or the prompts of one server require.

    Args:
        threads: in which users and permissions are looked up.
    """

    def __init__(self, threads: DjangoThreads) -> None:
        self._threads = threads
        self._required: dict[str, ValidPermission] = {}

    def require(self, name: str, permission: ValidPermission | None) -> None:
        """Allow ``name`` only to users with this permission; with None, to everybody."""
        if permission is not None:
            self._required[name] = permission

    def remove(self, name: str) -> None:
        self._required.pop(name, None)

    def required(self, name: str) -> ValidPermission | None:
        """The permission that ``name`` requires."""
        return self._required.get(name)

    def __contains__(self, name: str) -> bool:
        """Whether ``name`` requires a permission."""
        return name in self._required

    async def allow(self, name: str, *, exists: bool = True) -> bool:
        """Whether the user of the current request may use ``name``; outside of a request, yes.

        Args:
            exists: False for an unknown name. The answer is no, after the same query as for a hidden name: otherwise
                the time of the response would tell the one from the other.
        """
        if exists:
            return name not in self._required or name in await self.allowed([name])
        permission = next((each for each in self._required.values() if not callable(each)), None)
        if permission is not None and current_request.get().mcp_context is not None:
            await self._granted(get_user(), {0: permission})
        return False

    async def still_allow(self, name: str) -> bool:
        """Whether the user may use ``name``, as the database knows the user and the permissions now."""
        user = logged_in_user()
        if user is None or not hasattr(user, "_state") or user._state.adding:
            return await self.allow(name)
        return (await self._granted(user, {0: self._required.get(name, ())}, reload=True))[0]

    async def allowed(self, names: Iterable[str]) -> set[str]:
        """The names that the user may use. All are looked up together, because users cost queries."""
        names = set(names)
        required = {name: self._required[name] for name in names if name in self._required}
        if not required or current_request.get().mcp_context is None:
            return names
        # By identity: a callable need not be hashable.
        granted = await self._granted(get_user(), {id(permission): permission for permission in required.values()})
        return {name for name in names if name not in required or granted[id(required[name])]}

    async def allow_user(self, user: Any, name: str) -> bool:
        """Whether ``user`` may use ``name``; for a check before the SDK has read the request."""
        permission = self._required.get(name)
        return permission is None or (await self._granted(user, {0: permission}))[0]

    async def _granted(
        self, user: Any, permissions: dict[int, ValidPermission], *, reload: bool = False
    ) -> dict[int, bool]:
        reload = reload or is_user_of_process(user)
        named = {key: each for key, each in permissions.items() if not callable(each)}
        granted: dict[int, bool] = {}
        if named or reload:
            try:
                user, granted = await self._threads.look_up(_has_perms, user, named, reload)
            except Exception:
                _log_as_refused()
                return dict.fromkeys(permissions, False)
        # Django's backends refuse an inactive user; a callable might not.
        if user is None or (user.is_authenticated and not user.is_active):
            return dict.fromkeys(permissions, False)
        for key, each in permissions.items():
            if callable(each):
                granted[key] = await self._is_granted(each, user)
        return granted

    async def _is_granted(self, permission: Callable[[Any], Any], user: Any) -> bool:
        """The result of a callable; if it raises, the permission is refused and the client learns nothing."""

        def is_granted(user: Any) -> Any:
            result = permission(user)
            return result if inspect.isawaitable(result) else bool(result)  # a QuerySet is evaluated in this thread

        try:
            return bool(await self._threads.look_up(permission if is_async(permission) else is_granted, user))
        except PermissionDenied:
            return False
        except Exception:
            _log_as_refused()
            return False


def _has_perms(user: Any, permissions: dict[int, tuple[str, ...]], reload: bool) -> tuple[Any, dict[int, bool]]:
    """The user, reloaded from the database (None if deleted) or as given, and which permissions they have."""
    if reload:
        user = user._meta.default_manager.filter(pk=user.pk).first()
    return user, {key: _has_all(user, names) for key, names in permissions.items()}


def _has_all(user: Any, names: tuple[str, ...]) -> bool:
    has_perms = getattr(user, "has_perms", None)
    if has_perms is None:  # a user model without PermissionsMixin grants nobody a permission
        return False
    try:
        return bool(has_perms(names))
    except Exception:  # of a backend: the other permissions are still looked up
        _log_as_refused()
        return False


def _log_as_refused() -> None:
    logger.exception("A permission could not be looked up; it is refused.")


def check_param_headers(tool: str, arguments: dict[str, Any], input_schema: InputSchemaLookup) -> None:
    """The SDK's check of ``Mcp-Param-*`` headers, for a tool that requires a permission.

    The SDK would check before the caller is known, and so reveal the tool: see ``sdk.hide_input_schemas``.
    """
    request = current_request.get().mcp_context
    if request is None or request.request is None or request.protocol_version < _FIRST_WITH_PARAM_HEADERS:
        return  # versions are dates
    schema = input_schema(tool)
    if schema is None or (request.params or {}).get("name") != tool:  # unknown, or called by another tool
        return
    if refused := validate_mcp_param_headers(schema, arguments, request.request.headers):
        raise MCPError(refused.code, refused.message, refused.data)
