import json
import os

SECRET_KEY = "only for the clients"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
CSRF_TRUSTED_ORIGINS = json.loads(os.environ.get("TEST_TRUSTED_ORIGINS", "[]"))
INSTALLED_APPS = ["mcp_serving"]
ROOT_URLCONF = "tests.project.urls"
ASGI_APPLICATION = "tests.clients.asgi.application"
USE_TZ = True
MCP_SERVING = {"SERVER": "tests.clients.server.server", "HTTP_SERVER": "tests.clients.asgi.build_daphne"}
