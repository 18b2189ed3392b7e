"""Verifies the access tokens of the site's own authorization server."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models import OuterRef, Subquery
from django.urls import get_script_prefix, reverse

from mcp_serving.security.user_tokens import UserAccessToken, UserVerifier

logger = logging.getLogger(__name__)

METADATA = ".well-known/oauth-authorization-server"


class OAuth(UserVerifier):
    """Lets in clients whose user has signed in at this site and agreed.

    A token is accepted at the mount for whose URL it was issued, until it expires, is revoked or its user becomes
    inactive. Its ``client_id`` is the client's, its ``subject`` the primary key of the user.

    Raises:
        ImproperlyConfigured: ``"oauth2_provider"`` or ``"mcp_serving.oauth"`` is not in ``INSTALLED_APPS``.

    Example:
        >>> handler = StreamableHTTPHandler(server, auth=OAuth(), required_scopes=["orders:read"])
    """

    def __init__(self) -> None:
        for name in ("oauth2_provider", "mcp_serving.oauth"):
            if apps.ready and not apps.is_installed(name):
                raise ImproperlyConfigured(f"OAuth needs {name!r} in INSTALLED_APPS.")
        super().__init__()

    def look_up(self, text: str) -> UserAccessToken | None:
        from mcp_serving.oauth.models import note_use

        row = _access_token(text)
        if row is None:
            return None
        if (reason := _reason_to_refuse(row)) is not None:
            logger.info("Refused a token of %s for %s: %s.", row.application.client_id, row.user, reason)
            return None
        note_use(row, row.app_last_used)
        return UserAccessToken.of(
            row.user,
            token=text,
            client_id=row.application.client_id,
            scopes=row.scope.split(),
            expires_at=int(row.expires.timestamp()),
            resource=row.resource[0],
        )

    # For the mount, which tells clients where to sign in

    def authorization_server(self, site: str) -> str:
        """The issuer: ``OIDC_ISS_ENDPOINT`` of ``OAUTH2_PROVIDER``, or this site."""
        from oauth2_provider.settings import oauth2_settings

        if oauth2_settings.OIDC_ISS_ENDPOINT:
            return str(oauth2_settings.OIDC_ISS_ENDPOINT)
        path = reverse("oauth2_provider:oauth-server-metadata").removeprefix(get_script_prefix())
        return f"{site}/{path.removesuffix(METADATA)}".rstrip("/")

    def scopes_supported(self) -> Sequence[str]:
        """All scopes of ``OAUTH2_PROVIDER``."""
        from oauth2_provider.scopes import get_scopes_backend

        return list(get_scopes_backend().get_available_scopes())


def _reason_to_refuse(row: Any) -> str | None:
    from oauthlib.common import Request

    if row.is_expired():
        return "it has expired"
    if not row.user.is_active:
        return "its user is inactive"
    if not row.application.is_usable(Request("")):  # for an application model of the project's own
        return "its client is not usable"
    return None if len(row.resource) == 1 else f"it was issued for {len(row.resource)} resources"


def _access_token(text: str) -> Any:
    """The row of a token with its user, its client and the last use of the client, in one query."""
    from django.contrib.auth import get_user_model
    from oauth2_provider.models import get_access_token_model

    from mcp_serving.oauth.models import ConnectedApp

    model = get_access_token_model()
    used = ConnectedApp.objects.filter(user=OuterRef("user"), application=OuterRef("application"))
    # From the database where tokens are written: on a replica, a token would outlive its revocation.
    rows = model.objects.using(router.db_for_write(model)).select_related("user", "application")
    # Through the user model's manager, as Django's sessions do: a project may hide users there.
    rows = rows.filter(user__in=get_user_model()._default_manager.all(), application__isnull=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return rows.annotate(app_last_used=Subquery(used.values("last_used")[:1])).filter(token_checksum=digest).first()
