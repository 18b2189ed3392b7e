from __future__ import annotations

import pytest

from tests.support import in_django  # sets Django up


@pytest.fixture(autouse=True)
def no_clients(users: None) -> None:
    """Each test begins without clients, and without registrations that count."""
    from django.core.cache import cache
    from oauth2_provider.models import Application

    assert in_django.USERS
    Application.objects.all().delete()
    cache.clear()
