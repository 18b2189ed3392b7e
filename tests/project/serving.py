import json
import os
from typing import Any

from daphne.server import Server


def build_daphne() -> Server:
    """A server on TEST_ENDPOINTS (JSON); TEST_DAPHNE adds options."""
    from tests.project.asgi import application

    endpoints = json.loads(os.environ["TEST_ENDPOINTS"])
    options: dict[str, Any] = json.loads(os.environ.get("TEST_DAPHNE", "{}"))
    return Server(**{"application": application, "endpoints": endpoints, **options})
