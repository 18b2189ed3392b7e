"""Who may see and call what: Django permissions on tools, resources and prompts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.core.exceptions import PermissionDenied

from mcp_serving import current_request
from mcp_serving.threads import DjangoThreads
from mcp_serving.tools.declarations import Asked
from mcp_serving.users import get_user, is_of_the_process

logger = logging.getLogger(__name__)


class Permissions:
    """What each name of one kind asks of the user; a name that asks nothing is for everybody."""

    def __init__(self, threads: DjangoThreads) -> None:
        self._threads = threads
        self._asked: dict[str, Asked] = {}

    def ask(self, name: str, asked: Asked | None) -> None:
        """Ask for ``asked`` from now on, where it is not None."""
        if asked is not None:
            self._asked[name] = asked

    def forget(self, name: str) -> None:
        self._asked.pop(name, None)

    def asked(self, name: str) -> Asked | None:
        return self._asked.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._asked

    async def allow(self, name: str) -> bool:
        """Whether the user of the request that is being handled may; yes where no request is."""
        return name in await self.allowed([name])

    async def allowed(self, names: Iterable[str]) -> set[str]:
        """Those of the names that the user may use, found in one go: users cost queries."""
        names = set(names)
        asking = {name: self._asked[name] for name in names if name in self._asked}
        if not asking or current_request.get().mcp_context is None:
            return names
        # By identity: a callable need not be hashable.
        verdicts = await self._verdicts({id(asked): asked for asked in asking.values()})
        return {name for name in names if name not in asking or verdicts[id(asking[name])]}

    async def _verdicts(self, asked: dict[int, Asked]) -> dict[int, bool]:
        user: Any = get_user()
        named = {key: each for key, each in asked.items() if not callable(each)}
        verdicts: dict[int, bool] = {}
        if named or is_of_the_process(user):
            try:
                user, verdicts = await self._threads.look_up(_has_perms, user, named)
            except Exception:
                _log_as_refused()
                return dict.fromkeys(asked, False)
        # Django's backends say no to an inactive user; a callable might not.
        if user is None or (user.is_authenticated and not user.is_active):
            return dict.fromkeys(asked, False)
        for key, each in asked.items():
            if callable(each):
                verdicts[key] = await self._verdict(each, user)
        return verdicts

    async def _verdict(self, permission: Callable[[Any], Any], user: Any) -> bool:
        """What a callable says; one that fails says no, and tells the client nothing."""
        try:
            return bool(await self._threads.look_up(permission, user))
        except PermissionDenied:
            return False
        except Exception:
            _log_as_refused()
            return False


def _has_perms(user: Any, asked: dict[int, tuple[str, ...]]) -> tuple[Any, dict[int, bool]]:
    """The user as the database knows them now, None if it no longer does; and what they may."""
    if is_of_the_process(user):
        user = user._meta.default_manager.filter(pk=user.pk).first()
    return user, {key: _has_all(user, names) for key, names in asked.items()}


def _has_all(user: Any, names: tuple[str, ...]) -> bool:
    has_perms = getattr(user, "has_perms", None)
    if has_perms is None:  # a user model without PermissionsMixin grants nobody a permission
        return False
    try:
        return bool(has_perms(names))
    except Exception:  # of a backend: what else there is stays as it is
        _log_as_refused()
        return False


def _log_as_refused() -> None:
    logger.exception("A permission could not be found out; it counts as refused.")
