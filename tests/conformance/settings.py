"""A project in production's ways: DEBUG is off, so that the suite meets Django's own checks of Host and Origin."""

import json
import os

SECRET_KEY = "only for the conformance suite"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["mcp_serving"]
ROOT_URLCONF = "tests.project.urls"
ASGI_APPLICATION = "tests.conformance.asgi.application"
CHANNEL_LAYERS = json.loads(os.environ.get("TEST_CHANNEL_LAYERS", "{}"))
USE_TZ = True
MCP_SERVING = {
    "SERVER": "tests.conformance.everything.server",
    "HTTP_SERVER": "tests.conformance.asgi.build_daphne",
    "TRANSPORT": "http",
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    # From INFO on, the SDK tells which unknown tools it was asked for: the runner looks for these.
    "loggers": {"mcp": {"handlers": ["stderr"], "level": "INFO", "propagate": False}},
}
