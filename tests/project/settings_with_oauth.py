"""The test project with an authorization server for MCP clients."""

import json
import os
from pathlib import Path

from mcp_serving.oauth import oauth_settings
from tests.project.settings_with_tokens import *  # noqa: F403
from tests.project.settings_with_tokens import DATABASES, INSTALLED_APPS, TEMPLATES

INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.staticfiles", "oauth2_provider", "mcp_serving.oauth"]
ROOT_URLCONF = "tests.project.urls_with_oauth"
LOGIN_URL = "/login/"
DATABASES = {"default": {**DATABASES["default"], "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
TEMPLATES = [{**TEMPLATES[0], "DIRS": [Path(__file__).parent / "templates"]}]
OAUTH2_PROVIDER = oauth_settings(
    {"notes:read": "Read your notes", "notes:write": "Change and delete your notes"},
    **json.loads(os.environ.get("TEST_OAUTH", "{}")),
)
MCP_SERVING = {"SERVER": "tests.project.oauth_asgi.server", "HTTP_SERVER": "tests.project.oauth_asgi.build_daphne"}
