"""The web server that `manage.py runmcp` runs for the transports `http` and `both`."""

import os

from daphne.endpoints import build_endpoint_description_strings

from example_project.asgi import application
from mcp_serving.daphne import Server


def build_daphne() -> Server:
    """Build the Daphne server. It is served as given, so every option of Daphne's `Server` can be used here.

    This class is Daphne's, with limits on what a client may send: see docs/daphne.md. `EXAMPLE_HOST` and
    `EXAMPLE_PORT` in the environment change the address.
    """
    return Server(
        application=application,
        endpoints=build_endpoint_description_strings(
            host=os.environ.get("EXAMPLE_HOST", "127.0.0.1"),
            port=int(os.environ.get("EXAMPLE_PORT", "8000")),
        ),
    )
