"""The settings of every project, in each environment: DEBUG is off, and there is no middleware."""

import os

PROJECT = os.environ["BENCH_PEER"]
"""The name of its module in this folder."""

SECRET_KEY = "only for benchmarks, and as long as a real key"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = f"bench.peers_projects.{PROJECT}"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *{"ours": ["mcp_serving"], "drf": ["rest_framework"], "stateless": ["django_stateless_mcp"]}.get(PROJECT, []),
]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
# djangorestframework-mcp-server keeps its sessions here. By default, this cache drops entries when it has 300.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    }
}
REST_FRAMEWORK_MCP = {"REQUIRE_TOOL_PERMISSIONS": False}
MCP_SERVING = {"SERVER": "bench.peers_projects.ours.server", "HTTP_SERVER": "bench.peers_projects.ours.build_daphne"}
