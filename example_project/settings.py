"""Settings of the example shop; see https://docs.djangoproject.com/en/stable/ref/settings/."""

import os
from pathlib import Path

from mcp_serving.oauth import oauth_settings

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("DJANGO_DEBUG", "1") == "1"
# For your own machine only. In a deployment, set the environment variable.
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "django-insecure-for-development-only")
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "daphne",  # first: runserver is then Daphne's command and serves asgi.py
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "oauth2_provider",
    "mcp_serving",
    "mcp_serving.console",
    "mcp_serving.console.form_library",
    "mcp_serving.oauth",
    "mcp_serving.tokens",
    "example_project.shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "example_project.urls"
ASGI_APPLICATION = "example_project.asgi.application"

MCP_SERVING = {
    "SERVER": "example_project.mcp.server",
    "HTTP_SERVER": "example_project.serving.build_daphne",
    "SHUTDOWN_TIMEOUT": 10.0,
}

LOGIN_URL = "admin:login"

# What MCP clients may ask of a user who signs in, and the words in which the consent page says it.
OAUTH2_PROVIDER = oauth_settings({"shop": "Use the shop in your name, with your permissions"})

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DB", BASE_DIR / "db.sqlite3"),
        # Tools run in several threads. With this mode, a writer waits for the other writers. With SQLite's default, a
        # transaction that has read and then writes fails with "database is locked".
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

# Django configures its own loggers only. The project configures the others.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {
        name: {"handlers": ["console"], "level": "INFO", "propagate": False}
        for name in ("daphne", "mcp", "mcp_serving")
    },
}
