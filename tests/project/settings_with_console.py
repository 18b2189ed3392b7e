"""The test project with the console, tokens and the admin."""

import os

from tests.project.settings_with_tokens import *  # noqa: F403
from tests.project.settings_with_tokens import INSTALLED_APPS

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django.contrib.staticfiles",
    "mcp_serving.console",
    "mcp_serving.console.form_library",
]
ROOT_URLCONF = "tests.project.urls_with_console"
MCP_SERVING = {"SERVER": "tests.project.console.server", "HTTP_SERVER": "tests.project.console_asgi.build_daphne"}
if "TEST_CONSOLE_ACCESS" in os.environ:
    MCP_SERVING["CONSOLE_ACCESS"] = os.environ["TEST_CONSOLE_ACCESS"]
WSGI_APPLICATION = "tests.project.console_wsgi.application"
USE_I18N = True
OAUTH2_PROVIDER = {"SCOPES": {"things:delete": "Delete your things"}}
