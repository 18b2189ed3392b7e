"""The test project with a model whose changes clients are told of, in the SQLite database that TEST_SQLITE names."""

import os

from tests.project.settings import *  # noqa: F403
from tests.project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.project.changes"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["TEST_SQLITE"],
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TEST_SQLITE"] + ".other"},
}
ROOT_URLCONF = "tests.project.changes.urls"
MCP_SERVING = {"SERVER": "tests.project.changes.mcp.server", "HTTP_SERVER": "tests.project.changes_asgi.build_daphne"}
