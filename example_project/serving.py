"""The web server that `manage.py runmcp` runs for the transports `http` and `both`."""

import os

from daphne.endpoints import build_endpoint_description_strings

from example_project.asgi import application
from mcp_serving.daphne import Server


def build_daphne() -> Server:
    """Build the Daphne server, which is served as given: any option of Daphne's `Server` may stand here.

    This one is Daphne's, with bounds on what a client may send: docs/daphne.md says which, and why.
    """
    return Server(
        application=application,
        endpoints=build_endpoint_description_strings(
            host=os.environ.get("EXAMPLE_HOST", "127.0.0.1"),
            port=int(os.environ.get("EXAMPLE_PORT", "8000")),
        ),
    )
