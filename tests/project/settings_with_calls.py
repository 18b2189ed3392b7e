"""The test project with all apps of the package: its calls are stored."""

import json
import os

from tests.project.settings_with_oauth import *  # noqa: F403
from tests.project.settings_with_oauth import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "mcp_serving.calls"]
DATABASES = json.loads(os.environ["TEST_DATABASES"]) if "TEST_DATABASES" in os.environ else DATABASES
MCP_SERVING = {
    "SERVER": "tests.project.recorded_asgi.server",
    "HTTP_SERVER": "tests.project.recorded_asgi.build_daphne",
    **json.loads(os.environ.get("TEST_MORE_MCP_SERVING", "{}")),
}
