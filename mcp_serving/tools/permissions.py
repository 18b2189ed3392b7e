"""Who may see and call what: Django permissions on tools, resources and prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from mcp_serving.tools.threads import DjangoThreads
from mcp_serving.users import current_request, get_user

Permission: TypeAlias = "str | Iterable[str] | Callable[[Any], Any]"
"""``"app.codename"``, several of these, or a callable (sync or async) that is given the user."""


class Permissions:
    """What each name of one kind asks of the user; a name that asks nothing is for everybody."""

    def __init__(self, threads: DjangoThreads) -> None:
        self._threads = threads
        self._asked: dict[str, tuple[str, ...] | Callable[[Any], Any]] = {}

    def ask(self, name: str, permission: Permission | None) -> None:
        """Ask for ``permission`` from now on.

        Raises:
            ValueError: a permission is not of the form ``app.codename``.
        """
        if permission is None:
            return
        if callable(permission):
            self._asked[name] = permission
            return
        names = (permission,) if isinstance(permission, str) else tuple(permission)
        for each in names:
            app, _, codename = each.partition(".")
            if not (app and codename):
                raise ValueError(f"{name!r} asks for the permission {each!r}, which is not of the form 'app.codename'.")
        self._asked[name] = names

    async def allow(self, name: str) -> bool:
        """Whether the user of the request that is being handled may; yes where no request is."""
        asked = self._asked.get(name)
        if asked is None or current_request.get() is None:
            return True
        user: Any = get_user()
        if callable(asked):
            return bool(await self._threads.call(asked, user))
        return bool(await user.ahas_perms(asked))
