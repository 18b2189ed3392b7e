"""Sign in with the site's own login: an OAuth 2.1 authorization server for MCP clients, on django-oauth-toolkit.

An app of its own: list ``"oauth2_provider"`` and ``"mcp_serving.oauth"`` in ``INSTALLED_APPS``. The MCP SDK is not
loaded before a verifier is used, so that ``settings.py`` can import ``oauth_settings``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_serving.oauth.conf import oauth_settings
    from mcp_serving.oauth.jwt_verifier import JWTVerifier
    from mcp_serving.oauth.verifier import OAuth

__all__ = ["JWTVerifier", "OAuth", "oauth_settings"]

_MODULES = {"JWTVerifier": "jwt_verifier", "OAuth": "verifier", "oauth_settings": "conf"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mcp_serving.oauth.{_MODULES[name]}"), name)
