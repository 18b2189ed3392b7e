from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured


def check_users(**_: Any) -> list[CheckMessage]:
    """A token is a user's: the app needs a user model."""
    problem = user_model_problem()
    return [Error(problem, id="mcp_tokens.E001")] if problem else []


def user_model_problem() -> str | None:
    """Why there are no users to give tokens to, in one line; None if there are."""
    try:
        get_user_model()
    except ImproperlyConfigured as error:
        return (
            f"mcp_serving.tokens has no users to give tokens to: {error}. Put 'django.contrib.auth' and "
            "'django.contrib.contenttypes' into INSTALLED_APPS, or the app of your own user model."
        )
    return None
