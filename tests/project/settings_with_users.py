"""The test project with Django's users, in the SQLite database that TEST_SQLITE names."""

import os

from tests.project.settings import *  # noqa: F403
from tests.project.settings import INSTALLED_APPS

SECRET_KEY = os.environ.get("TEST_SECRET_KEY", "only for tests")
SECRET_KEY_FALLBACKS = [key for key in os.environ.get("TEST_SECRET_KEY_FALLBACKS", "").split(",") if key]
INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TEST_SQLITE"]}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
MCP_SERVING = {"SERVER": "tests.project.shop.server", "HTTP_SERVER": "tests.project.shop_asgi.build_daphne"}
