from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured


def check_users(**_: Any) -> list[CheckMessage]:
    """Check that the project has a user model: each call refers to its user."""
    try:
        get_user_model()
    except ImproperlyConfigured as error:
        problem = (
            f"mcp_serving.calls needs a user model: {error}. Add 'django.contrib.auth' and "
            "'django.contrib.contenttypes' to INSTALLED_APPS, or the app of your own user model."
        )
        return [Error(problem, id="mcp_calls.E001")]
    return []
