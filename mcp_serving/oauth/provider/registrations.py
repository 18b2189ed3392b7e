"""Clients that register themselves: how many there may be, and which of them nobody uses."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from django.core.cache import cache
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from oauth2_provider.models import get_application_model, get_grant_model
from oauth2_provider.settings import oauth2_settings

from mcp_serving.oauth.conf import DEFAULTS, HOUR
from mcp_serving.oauth.models import ConnectedApp

logger = logging.getLogger(__name__)

MOST_UNUSED = 1000
"""How many clients may have registered themselves and be used by nobody: about 1 MB in the database."""

TIME_TO_SIGN_IN = timedelta(hours=1)
"""A client that nobody has connected within this time may be removed to make room."""


def unused(older_than: timedelta = timedelta(0)) -> QuerySet[Any]:
    """The clients that registered themselves before ``older_than`` and that no user has connected."""
    applications = get_application_model()
    sources = applications.RegistrationSource
    connections = ConnectedApp.objects.filter(application=OuterRef("pk"))
    # A code that is being exchanged: its user has agreed.
    grants = get_grant_model().objects.filter(application=OuterRef("pk"), expires__gt=timezone.now())
    found: QuerySet[Any] = applications.objects.filter(
        Q(registration_source__in=(sources.DCR, sources.CIMD)) & ~Exists(connections) & ~Exists(grants),
        created__lte=timezone.now() - older_than,
    )
    return found


def remove_unused(older_than: timedelta) -> int:
    """Forget apps that can no longer call, then remove the clients that nobody uses; returns how many these were."""
    ConnectedApp.objects.exclude(pk__in=ConnectedApp.objects.with_tokens().values("pk")).delete()
    found = unused(older_than)
    number = found.count()
    found.delete()
    return number


def has_room() -> bool:
    """Whether one more client may register itself; makes room if there is none."""
    if unused().count() < MOST_UNUSED:
        return True
    removed = remove_unused(TIME_TO_SIGN_IN)
    if removed == 0:
        logger.warning(
            "Refused a registration: %d clients registered within the last hour, and nobody uses them. Turn "
            "registration off with OAUTH2_PROVIDER['DCR_ENABLED'] = False and ['CIMD_ENABLED'] = False, or wait.",
            MOST_UNUSED,
        )
    return removed > 0


def is_too_often(request: HttpRequest) -> bool:
    """Whether the IP address has registered as many clients in this hour as it may; counts this request."""
    most = oauth2_settings.user_settings.get("DCR_REGISTRATIONS_PER_HOUR", DEFAULTS["DCR_REGISTRATIONS_PER_HOUR"])
    address = request.META.get("REMOTE_ADDR", "")
    key = f"mcp_serving.oauth.registrations:{address.replace(' ', '')[:64]}:{int(time.time() // HOUR)}"
    cache.add(key, 0, HOUR)
    try:
        count = cache.incr(key)
    except ValueError:  # the cache has dropped it meanwhile
        return False
    if count > most:
        logger.warning("Refused a registration from %.64r: more than %d within an hour.", address, most)
    return bool(count > most)


class RoomForClients:
    """The permission of django-oauth-toolkit for clients with a metadata document: as long as there is room."""

    def has_permission(self, request: Any, client_id: str) -> bool:
        known = get_application_model().objects.filter(client_id=client_id).exists()  # then it is only refreshed
        return known or has_room()
