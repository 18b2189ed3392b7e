from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import Error, models, router, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from oauth2_provider.settings import oauth2_settings

if TYPE_CHECKING:
    from oauth2_provider.models import AbstractAccessToken

logger = logging.getLogger(__name__)

LAST_USED_PRECISION = timedelta(minutes=1)
"""An app in constant use costs one write in this time, and not one for each call."""


class ConnectedAppQuerySet(models.QuerySet["ConnectedApp"]):
    def disconnect(self) -> int:
        """End what the apps may do: their tokens are refused from the next request on. Returns how many there were."""
        from oauth2_provider.models import get_access_token_model, get_grant_model, get_refresh_token_model

        access_tokens, refresh_tokens = get_access_token_model(), get_refresh_token_model()
        apps = list(self.select_related("user", "application"))
        for app in apps:
            owned = {"user": app.user, "application": app.application}
            with transaction.atomic(using=router.db_for_write(access_tokens)):
                get_grant_model().objects.filter(**owned).delete()
                # Kept as revoked rows, so that django-oauth-toolkit recognises a token that is used again.
                refresh_tokens.objects.filter(**owned, revoked=None).update(revoked=timezone.now(), access_token=None)
                access_tokens.objects.filter(**owned).delete()
                self.model.objects.filter(pk=app.pk).delete()
        return len(apps)

    def with_tokens(self) -> QuerySet[ConnectedApp]:
        """The apps that can still call: with a valid access token, or a refresh token for a new one."""
        from oauth2_provider.models import get_access_token_model, get_refresh_token_model

        owned = {"user": OuterRef("user"), "application": OuterRef("application")}
        valid = get_access_token_model().objects.filter(**owned, expires__gt=timezone.now())
        renewable = get_refresh_token_model().objects.filter(**owned, revoked=None, access_token__isnull=False)
        if (lifetime := oauth2_settings.REFRESH_TOKEN_EXPIRE_SECONDS) is not None:
            seconds = lifetime if isinstance(lifetime, timedelta) else timedelta(seconds=lifetime)
            renewable = renewable.filter(access_token__expires__gt=timezone.now() - seconds)
        return self.filter(Exists(valid) | Exists(renewable))


class ConnectedApp(models.Model):
    """An MCP client that may call in the name of a user, who has agreed to it."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="mcp_connected_apps", verbose_name=_("user")
    )
    application = models.ForeignKey(
        oauth2_settings.APPLICATION_MODEL,
        on_delete=models.CASCADE,
        related_name="mcp_connections",
        verbose_name=_("app"),
    )
    scope = models.TextField(_("scopes"), blank=True, editable=False)
    connected = models.DateTimeField(_("connected"), default=timezone.now, editable=False)
    last_used = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects = ConnectedAppQuerySet.as_manager()

    class Meta:
        verbose_name = _("connected app")
        verbose_name_plural = _("connected apps")
        ordering = ("-connected", "-pk")
        constraints = [  # noqa: RUF012 - as Django has it
            models.UniqueConstraint(fields=("user", "application"), name="mcp_oauth_one_connection")
        ]

    def __str__(self) -> str:
        return f"{self.application} of {self.user}"

    @property
    def scopes(self) -> list[str]:
        """The scopes one by one."""
        return self.scope.split()


def note_use(token: AbstractAccessToken, last_used: Any) -> None:
    """Note that the app of an access token was used now, unless that was noted a moment ago.

    Args:
        token: the access token.
        last_used: when the app was last used, as the caller has read it.
    """
    now = timezone.now()
    before = now - LAST_USED_PRECISION
    if last_used is not None and last_used > before:
        return
    due = Q(last_used=None) | Q(last_used__lte=before)  # checked again: other workers have read the same row
    rows = ConnectedApp.objects.filter(due, user_id=token.user_id, application_id=token.application_id)
    try:
        rows.update(last_used=now)
    except Error as error:  # the database is read-only for a while: the token is valid all the same
        logger.warning("The last use of %s could not be noted: %s", token.application, error)


def _note_connection(token: AbstractAccessToken, **_: Any) -> None:
    """A client has got a token: the first one connects it."""
    if token.user_id is not None and token.application_id is not None and token.resource:
        ConnectedApp.objects.update_or_create(
            user_id=token.user_id, application_id=token.application_id, defaults={"scope": token.scope}
        )


def _sign_id_tokens(instance: Any, **_: Any) -> None:
    """Let clients that registered themselves use OpenID Connect where the site has a key for it.

    django-oauth-toolkit leaves their algorithm empty, and then fails to make the ID token (its issue 1853).
    """
    sources = type(instance).RegistrationSource
    registered_itself = instance.registration_source in (sources.DCR, sources.CIMD)
    if registered_itself and not instance.algorithm and oauth2_settings.OIDC_ENABLED:
        instance.algorithm = instance.RS256_ALGORITHM if oauth2_settings.OIDC_RSA_PRIVATE_KEY else ""


def connect_signals() -> None:
    from oauth2_provider.models import get_application_model
    from oauth2_provider.signals import app_authorized

    app_authorized.connect(_note_connection, dispatch_uid="mcp_serving.oauth")
    models.signals.pre_save.connect(_sign_id_tokens, sender=get_application_model(), dispatch_uid="mcp_serving.oauth")
