"""A project whose MCP server misbehaves in every way that the tests need."""

import json
import os

SECRET_KEY = "only for tests"
DEBUG = os.environ.get("TEST_DEBUG", "1") == "1"
ALLOWED_HOSTS = json.loads(os.environ.get("TEST_ALLOWED_HOSTS", '["localhost", "127.0.0.1", "[::1]", "testserver"]'))
CSRF_TRUSTED_ORIGINS = json.loads(os.environ.get("TEST_TRUSTED_ORIGINS", "[]"))
INSTALLED_APPS = ["mcp_serving", *json.loads(os.environ.get("TEST_APPS", "[]"))]
ROOT_URLCONF = "tests.project.urls"
ASGI_APPLICATION = os.environ.get("TEST_ASGI_APPLICATION", "tests.project.asgi.application")
DATABASES = json.loads(os.environ.get("TEST_DATABASES", "{}"))
CHANNEL_LAYERS = json.loads(os.environ.get("TEST_CHANNEL_LAYERS", "{}"))
if "TEST_CACHES" in os.environ:
    CACHES = json.loads(os.environ["TEST_CACHES"])
USE_TZ = True
MCP_SERVING = json.loads(
    os.environ.get(
        "TEST_MCP_SERVING",
        '{"SERVER": "tests.project.mcp.server", "HTTP_SERVER": "tests.project.serving.build_daphne"}',
    )
)
LOGGING = json.loads(os.environ.get("TEST_LOGGING", "{}"))
