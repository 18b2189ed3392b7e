"""The test project with two databases, for tests/preview."""

import json
import os

from tests.project.settings import *  # noqa: F403

DATABASES = json.loads(os.environ["TEST_DATABASES"])
if "mysql" in os.environ["TEST_DATABASES"]:
    import pymysql

    pymysql.install_as_MySQLdb()
DATABASE_ROUTERS = ["tests.project.preview.ArchiveRouter"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["mcp_serving", "django.contrib.contenttypes", "django.contrib.auth", "tests.project.stock"]
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = os.environ["TEST_MAIL"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": EMAIL_FILE_PATH}}
}
MCP_SERVING = {
    "SERVER": "tests.project.preview.server",
    "HTTP_SERVER": "tests.project.preview.build_daphne",
    "PREVIEW_MASK": ["stock.Account.nickname"],
    **json.loads(os.environ.get("TEST_MCP_SERVING", "{}")),
}
TIME_ZONE = "UTC"
