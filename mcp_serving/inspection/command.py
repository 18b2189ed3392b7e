"""The actions of ``manage.py mcp``; loaded once the SDK is needed."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client import InputRequiredRoundsExceededError
from mcp_types import GetPromptResult

from mcp_serving import conf, loading, sdk
from mcp_serving.inspection import terminal
from mcp_serving.inspection.arguments import parsed
from mcp_serving.inspection.catalog import Catalog, Offered, catalog_of, declaration_of
from mcp_serving.inspection.client import connect, connect_to_url
from mcp_serving.inspection.description import described, described_as_json, indented, section
from mcp_serving.logs import escaped
from mcp_serving.runtime import Runtime, finish_records
from mcp_serving.shutdown.deadline import Deadline

CLOSE_SECONDS = 5.0
"""How long the lifespan of the server may take to be left."""

Out = Callable[[str], None]


class Mistake(ValueError):
    """Something that the user of the command can change, in one line."""


def run(options: dict[str, Any], user: Any, out: Out) -> bool:
    """Carry out an action.

    Returns:
        False if a tool answered with an error.

    Raises:
        Mistake: the server refused, or cannot be reached.
        ImproperlyConfigured: the server of the project cannot be loaded.
    """
    mcp = None if options["url"] else _server(options)
    if options["url"] and (user is not None or options["server"]):
        raise Mistake("--url asks a running server: use --token instead of --user, and leave out --server.")
    if options["token"] and not options["url"]:
        raise Mistake("--token is for --url: without it, --user says who calls.")
    calls = logging.getLogger("mcp_serving.calls")
    if not calls.handlers and calls.level == logging.NOTSET:
        calls.setLevel(logging.WARNING)  # the result is printed, and a log line would write into the bar
    try:
        return anyio.run(_run, options, mcp, user, out)
    except MCPError as error:
        raise Mistake(error.error.message) from error
    except (httpx2.HTTPError, OSError) as error:
        raise Mistake(f"{options['url']} cannot be used: {loading.in_one_line(error)}.") from error
    except InputRequiredRoundsExceededError as error:
        raise Mistake(str(error)) from error


async def _run(options: dict[str, Any], mcp: sdk.SDKServer | None, user: Any, out: Out) -> bool:
    watch = terminal.Watch(sys.stderr)
    questions = terminal.Questions(
        watch,
        yes=options.get("yes", False),
        can_ask=sys.stdin is not None and sys.stdin.isatty(),
        prompt=terminal.line_from_terminal,
    )
    client_options = {"elicitation_callback": questions, "logging_callback": watch.log, "log_level": "debug"}
    async with _connected(options, mcp, user, client_options) as client:
        action = {"list": _list, "inspect": _inspect, "call": _call, "read": _read, "prompt": _prompt}[
            options["action"]
        ]
        try:
            return await action(options, client, mcp, watch, out)
        finally:
            watch.clear()


@asynccontextmanager
async def _connected(
    options: dict[str, Any], mcp: sdk.SDKServer | None, user: Any, client_options: dict[str, Any]
) -> AsyncIterator[Client]:
    if mcp is None:
        async with connect_to_url(options["url"], token=options["token"], **client_options) as client:
            yield client
        return
    try:
        async with connect(mcp, user=user, **client_options) as client:
            yield client
    finally:
        deadline = Deadline(CLOSE_SECONDS)
        await Runtime.of(sdk.low_level(mcp)).close(deadline)
        await finish_records(deadline)


def _server(options: dict[str, Any]) -> sdk.SDKServer:
    path = options["server"] or conf.configuration().server
    if path is None:
        raise Mistake(
            "No MCP server is named: set MCP_SERVING = {'SERVER': 'project.mcp.server'} or give --server PATH."
        )
    server: sdk.SDKServer = loading.load_server(path)
    return server


# list and inspect


async def _list(options: dict[str, Any], client: Client, mcp: Any, watch: terminal.Watch, out: Out) -> bool:
    found = await catalog_of(client)
    groups = {
        "tools": {"tools": found.tools},
        "resources": {"resources": found.resources, "resourceTemplates": found.templates},
        "prompts": {"prompts": found.prompts},
    }
    wanted = (
        groups[options["kind"]] if options["kind"] else {k: v for group in groups.values() for k, v in group.items()}
    )
    if options["json"]:
        out(indented({key: [offered.as_json() for offered in listed] for key, listed in wanted.items()}))
        return True
    titles = {
        "tools": "Tools",
        "resources": "Resources",
        "resourceTemplates": "Resource templates",
        "prompts": "Prompts",
    }
    sections = [section(titles[key], listed) for key, listed in wanted.items() if listed]
    out(
        "\n\n".join(sections)
        if sections
        else f"The server offers no {options['kind'] or 'tools, resources or prompts'}."
    )
    return True


async def _inspect(options: dict[str, Any], client: Client, mcp: Any, watch: terminal.Watch, out: Out) -> bool:
    found = _named(await catalog_of(client), options, mcp)
    descriptions = []
    for offered in found:
        declaration = declaration_of(mcp, offered) if mcp is not None else None
        if options["json"]:
            descriptions.append(described_as_json(offered, declaration))
        else:
            out(described(offered, declaration))
    if options["json"]:
        out(indented(descriptions[0] if len(descriptions) == 1 else descriptions))
    return True


def _named(catalog: Catalog, options: dict[str, Any], mcp: Any) -> list[Offered]:
    if found := catalog.named(options["name"]):
        return found
    who = f"the user {options['user']!r}" if options.get("user") else "a user who is not logged in"
    hint = "" if mcp is None else f" that {who} may use: `mcp list` shows them, --user NAME says who asks"
    raise Mistake(f"There is no tool, resource or prompt {options['name']!r}{hint}.")


# call, read and prompt


async def _call(options: dict[str, Any], client: Client, mcp: Any, watch: terminal.Watch, out: Out) -> bool:
    catalog = await catalog_of(client)
    tool = next((offered for offered in catalog.tools if offered.name == options["name"]), None)
    if tool is None:
        _named(Catalog([], [], [], []), options, mcp)
        raise AssertionError
    as_json, pairs = options["json"], list(options["arguments"])
    arguments: dict[str, Any] = {}
    if isinstance(as_json, str) and not as_json.lstrip().startswith("{"):
        pairs.insert(0, as_json)  # --json KEY=VALUE
    elif isinstance(as_json, str):
        arguments = _object(as_json)
    arguments |= parsed(tool.declared.input_schema, pairs)  # type: ignore[union-attr]
    result = await client.call_tool(tool.name, arguments, progress_callback=watch.progress)
    watch.clear()
    if as_json:
        out(indented(result))
    elif result.is_error:
        sys.stderr.write(f"{_shown(terminal.text_of_result(result), sys.stderr)}\n")
    else:
        out(_shown(terminal.text_of_result(result), sys.stdout))
    return not result.is_error


def _object(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise Mistake(f"--json: the arguments are not valid JSON: {error}.") from error
    return dict(arguments)


async def _read(options: dict[str, Any], client: Client, mcp: Any, watch: terminal.Watch, out: Out) -> bool:
    result = await client.read_resource(options["name"])
    if options["json"]:
        out(indented(result))
    for contents in () if options["json"] else result.contents:
        out(_shown(terminal.text_of_resource(contents), sys.stdout))
    return True


async def _prompt(options: dict[str, Any], client: Client, mcp: Any, watch: terminal.Watch, out: Out) -> bool:
    arguments = {}
    for pair in options["arguments"]:
        key, found, value = pair.partition("=")
        if not (key and found):
            raise Mistake(f"{pair!r} is not an argument; write KEY=VALUE.")
        arguments[key] = value
    result: GetPromptResult = await client.get_prompt(options["name"], arguments)
    if options["json"]:
        out(indented(result))
    for message in () if options["json"] else result.messages:
        out(f"{message.role}:\n{textwrap.indent(_shown(terminal.text_of_block(message.content), sys.stdout), '  ')}")
    return True


def _shown(text: str, stream: Any) -> str:
    """Text for a terminal, which must not obey what a tool returns; in a pipe, the text as it is."""
    if not stream.isatty():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))
