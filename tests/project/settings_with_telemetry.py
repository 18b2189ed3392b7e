"""The test project with users and OpenTelemetry."""

import os

from tests.project.settings_with_users import *  # noqa: F403
from tests.project.settings_with_users import INSTALLED_APPS, MCP_SERVING

INSTALLED_APPS = [*INSTALLED_APPS, "mcp_serving.otel"]
MCP_SERVING = {
    **MCP_SERVING,
    "SERVER": "tests.project.telemetry.server",
    "TRACE_USERS": os.environ.get("TEST_TRACE_USERS") == "1",
}
