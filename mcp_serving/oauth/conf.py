"""The settings of django-oauth-toolkit with which MCP clients can sign in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

DEFAULT_SCOPES = {"mcp": "Use this site in your name"}

DEFAULTS: dict[str, Any] = {
    # What clients find out about the server
    "OAUTH2_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED": ["none", "client_secret_basic", "client_secret_post"],
    "OIDC_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED": ["none", "client_secret_basic", "client_secret_post"],
    "OAUTH2_RESPONSE_TYPES_SUPPORTED": ["code"],
    "OIDC_RESPONSE_TYPES_SUPPORTED": ["code"],
    "OAUTH2_GRANT_TYPES_SUPPORTED": ["authorization_code", "refresh_token"],
    # How clients register
    "CIMD_ENABLED": True,
    "CIMD_METADATA_FETCHER": "mcp_serving.oauth.provider.client_metadata.ClientMetadataFetcher",
    "CIMD_REGISTRATION_PERMISSION_CLASSES": ["mcp_serving.oauth.provider.registrations.RoomForClients"],
    "DCR_ENABLED": True,
    "DCR_REGISTRATION_PERMISSION_CLASSES": ["oauth2_provider.dcr.AllowAllDCRPermission"],
    "DCR_REGISTRATIONS_PER_HOUR": 20,  # of one IP address; the only key that django-oauth-toolkit does not have
    # Where users are sent back to
    "ALLOWED_REDIRECT_URI_SCHEMES": ["https", "http", "cursor"],  # http for loopback addresses alone: the validator
    "ALLOW_LOCALHOST_LOOPBACK": True,  # desktop clients listen on any port of localhost
    "ALLOW_URI_WILDCARDS": False,
    "OAUTH2_VALIDATOR_CLASS": "mcp_serving.oauth.provider.validator.Validator",
    # How long it lasts
    "AUTHORIZATION_CODE_EXPIRE_SECONDS": MINUTE,
    "ACCESS_TOKEN_EXPIRE_SECONDS": HOUR,
    "REFRESH_TOKEN_EXPIRE_SECONDS": 30 * DAY,  # after the last use
    "ROTATE_REFRESH_TOKEN": True,
    "REFRESH_TOKEN_REUSE_PROTECTION": True,
    "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": 0,
    # OAuth 2.1
    "PKCE_REQUIRED": True,
    "REQUEST_APPROVAL_PROMPT": "force",
    "COMPLIANT_BCP_RFC9700_ACCESS_TOKEN_TRANSPORT": True,  # never in a URL
    "COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS": True,
    "COMPLIANT_BCP_RFC9700_IMPLICIT_GRANT": True,
    "COMPLIANT_BCP_RFC9700_PASSWORD_GRANT": True,
    "COMPLIANT_BCP_RFC9700_PKCE_METHOD": True,  # S256 alone
    "COMPLIANT_BCP_RFC9700_PKCE_REQUIRED": True,
    "COMPLIANT_BCP_RFC9700_REDIRECT_URI_MATCHING": True,
    "COMPLIANT_BCP_RFC9700_REFRESH_TOKEN": True,
    "COMPLIANT_BCP_RFC9700_TOKEN_STORAGE": True,  # digests alone
}


def oauth_settings(scopes: Mapping[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    """The value of ``OAUTH2_PROVIDER``: what MCP clients need, and what keeps attackers out.

    It is an ordinary dict, of which every key can be read. ``manage.py check`` names each key whose value would lock
    clients out or let attackers in.

    Args:
        scopes: each scope, with the words in which the consent page explains it. By default there is one: ``mcp``.
        **overrides: keys of ``OAUTH2_PROVIDER`` that take the place of these, or are added.

    Raises:
        TypeError: the scopes are not a dict of texts.

    Example:
        >>> OAUTH2_PROVIDER = oauth_settings({"orders:read": "See your orders"}, DCR_ENABLED=False)
    """
    if scopes is not None and not (isinstance(scopes, Mapping) and scopes):
        raise TypeError(f'scopes is {scopes!r}; it has to be a dict such as {{"orders:read": "See your orders"}}.')
    return {"SCOPES": dict(scopes or DEFAULT_SCOPES), **DEFAULTS, **overrides}
