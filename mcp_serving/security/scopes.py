"""Which scopes a bearer token needs for a tool, a resource or a prompt.

A permission belongs to the user, and hides. A scope belongs to the token: the user has agreed to less, and can be asked
for more. Callers without a bearer token, such as users who are logged in, need no scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST

from mcp_serving.call_outcomes import Refused


class Scopes:
    """The scopes that the tools, resources and prompts of one server require, by their kind and name."""

    def __init__(self) -> None:
        self._required: dict[tuple[str, str], tuple[str, ...]] = {}

    def require(self, kind: str, name: str, scopes: tuple[str, ...]) -> None:
        """Accept for ``name`` only tokens with all these scopes."""
        if scopes:
            self._required[kind, name] = scopes

    def remove(self, kind: str, name: str) -> None:
        self._required.pop((kind, name), None)

    def required(self, kind: str, name: str) -> tuple[str, ...]:
        """The scopes that ``name`` requires."""
        return self._required.get((kind, name), ())

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        """Each kind, name and scope, in the order of declaration."""
        return ((kind, name, scope) for (kind, name), scopes in self._required.items() for scope in scopes)

    def __bool__(self) -> bool:
        return bool(self._required)

    def all(self) -> list[str]:
        """Each scope that something requires, once, in the order of declaration."""
        return list(dict.fromkeys(scope for _, _, scope in self))

    def missing(self, kind: str, name: str, granted: Iterable[str]) -> list[str]:
        """The scopes that ``name`` requires and a token with the scopes ``granted`` lacks."""
        granted = set(granted)
        return [scope for scope in self.required(kind, name) if scope not in granted]

    def missing_now(self, kind: str, name: str) -> list[str]:
        """The scopes that the token of the current request lacks; none if it has no token."""
        token = get_access_token()
        return [] if token is None else self.missing(kind, name, token.scopes)

    def check(self, kind: str, name: str) -> None:
        """Refuse the current request if its token lacks a scope.

        Over HTTP, such a request has got 403 before. This check is for calls that take another way to ``name``, such
        as a tool that calls a tool.

        Raises:
            MCPError: names the first missing scope.
        """
        if missing := self.missing_now(kind, name):
            raise MCPError(INVALID_REQUEST, f"The token lacks the scope {missing[0]}.") from Refused("scope")
