"""Bearer tokens of Django users: a model, a page of the admin, a command, and the verifier that a handler takes.

An app of its own, so that projects with other tokens get no table: list ``"mcp_serving.tokens"`` in
``INSTALLED_APPS``. As in ``mcp_serving``, the MCP SDK is not loaded before the verifier is used.
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
