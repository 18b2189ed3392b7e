from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured


def check_users(**_: Any) -> list[CheckMessage]:
    """Check that the project has a user model: each token belongs to a user."""
    problem = user_model_problem()
    return [Error(problem, id="mcp_tokens.E001")] if problem else []


def user_model_problem() -> str | None:
    """Why the project has no user model, in one line; None if it has one."""
    try:
        get_user_model()
    except ImproperlyConfigured as error:
        return (
            f"mcp_serving.tokens needs a user model: {error}. Add 'django.contrib.auth' and "
            "'django.contrib.contenttypes' to INSTALLED_APPS, or the app of your own user model."
        )
    return None
