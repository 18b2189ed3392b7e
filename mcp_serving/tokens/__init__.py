"""Bearer tokens of Django users: a model, a page of the admin, a command, and a verifier for the handler.

It is a Django app of its own, so that a project without it has no table: add ``"mcp_serving.tokens"`` to
``INSTALLED_APPS``. Importing it does not load the MCP SDK; using the verifier does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_serving.tokens.verifier import UserTokenVerifier

__all__ = ["UserTokenVerifier"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mcp_serving.tokens import verifier

    return getattr(verifier, name)
