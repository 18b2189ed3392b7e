"""The test project with users, their tokens, and the admin."""

import os

from tests.project.settings_with_users import *  # noqa: F403
from tests.project.settings_with_users import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.messages", "django.contrib.admin", "mcp_serving.tokens"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"
ROOT_URLCONF = "tests.project.urls_with_admin"
MCP_SERVING = {"SERVER": "tests.project.tokens.server", "HTTP_SERVER": "tests.project.tokens.build_daphne"}
USE_TZ = os.environ.get("TEST_USE_TZ", "1") == "1"
