from tests.project.settings_with_users import *  # noqa: F403
from tests.project.settings_with_users import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "mcp_serving.tokens"]
DATABASES["default"]["CONN_MAX_AGE"] = 60
MCP_SERVING = {"SERVER": "bench.growth_project.server"}
