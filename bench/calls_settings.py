import json
import os

from tests.project.settings_with_users import *  # noqa: F403
from tests.project.settings_with_users import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.project.things", "mcp_serving.calls"]
DATABASES = json.loads(os.environ["TEST_DATABASES"])
MCP_SERVING = {"SERVER": "bench.calls_project.server", "HTTP_SERVER": "bench.calls_project.build_daphne"}
