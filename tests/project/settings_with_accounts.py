"""The test project with tokens and users of its own making, without Django's."""

import os

from tests.project.settings import *  # noqa: F403
from tests.project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.project.accounts", "mcp_serving.tokens"]
AUTH_USER_MODEL = os.environ.get("TEST_USER_MODEL", "accounts.Account")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TEST_SQLITE"]}}
