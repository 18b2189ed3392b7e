"""``manage.py mcp config``: tell an MCP client about the server of this project."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from mcp_serving import conf, loading, sdk
from mcp_serving.inspection.client_configurations import CLIENTS, Endpoint, MCPClient, Process, slug
from mcp_serving.inspection.config_files import write_entry


def configure(options: dict[str, Any], out: Callable[[str], None], note: Callable[[str], None]) -> None:
    """Print the configuration of a client, or write it into the client's file.

    Raises:
        ValueError: an option does not fit the others, or the file cannot be changed.
        ImproperlyConfigured: the server of the project cannot be loaded.
    """
    client = CLIENTS.get(options["client"])
    if client is None:
        raise ValueError(f"There is no client {options['client']!r}; allowed are {', '.join(CLIENTS)}.")
    server = _server(options)
    name = options["name"] or _name(options)
    if not options["write"]:
        out(client.text(name, server).rstrip("\n"))
        note(f"This belongs in {client.path()}; --write puts it there.")
        if command := client.shell(name, server):
            note(f"The same by a command: {command}")
    else:
        _write(client, name, server, out)
    if isinstance(server, Endpoint) and client.endpoint_note:
        note(client.endpoint_note)


def _write(client: MCPClient, name: str, server: Process | Endpoint, out: Callable[[str], None]) -> None:
    path = client.path()
    try:
        backup = write_entry(path, [*client.keys, name], client.entry(server))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} was not changed: {error}. Add the entry by hand: leave out --write.") from error
    kept = f" The file as it was: {backup}." if backup else ""
    out(f"Wrote the server {name!r} into {path}.{kept}")


def _server(options: dict[str, Any]) -> Process | Endpoint:
    if options["http"]:
        if options["user"] or options["server"]:
            raise ValueError("--http names a running server: use --token instead of --user, and leave out --server.")
        return Endpoint(options["http"], options["token"])
    if options["token"]:
        raise ValueError("--token is for --http: without it, --user says who calls.")
    arguments = ["runmcp", "--transport", "stdio"]
    for option in ("server", "user"):
        if options[option]:
            arguments += [f"--{option}", options[option]]
    script = Path(sys.argv[0]).resolve()
    if script.suffix == ".py" and Path(django.__file__).parent not in script.parents:
        more = ["--settings", options["settings"]] if options["settings"] else []
        return Process(sys.executable, [str(script), *arguments, *more])
    more = ["--settings", settings.SETTINGS_MODULE, "--pythonpath", os.getcwd()]
    return Process(sys.executable, ["-m", "django", *arguments, *more])


def _name(options: dict[str, Any]) -> str:
    path = options["server"] or conf.configuration().server
    if path is None:
        raise ValueError("No MCP server is named: set MCP_SERVING = {'SERVER': 'project.mcp.server'}, or give --name.")
    return slug(sdk.low_level(loading.load_server(path)).name)
