"""``manage.py mcp``: see and try the project's MCP server, without a running server."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from contextlib import suppress
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mcp_serving.management.base import hint_for_tracebacks, one_line_errors, user_named
from mcp_serving.sdk_installation import sdk_problem

KINDS = ("tools", "resources", "prompts")


class Command(BaseCommand):
    help = "Lists, describes and calls what the project's MCP server offers, and configures MCP clients for it."
    requires_system_checks: list[str] = []  # noqa: RUF012 - a mistake in the settings is reported in one line

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="list|inspect|call|read|prompt|config")

        command = actions.add_parser("list", help="list tools, resources and prompts")
        command.add_argument("kind", nargs="?", choices=KINDS, help="only one kind")
        _add_json(command)
        _add_target(command)

        command = actions.add_parser("inspect", help="describe a tool, resource or prompt")
        command.add_argument("name", help="its name or URI, as `list` shows it")
        _add_json(command)
        _add_target(command)

        command = actions.add_parser("call", help="call a tool")
        command.add_argument("name", help="the name of the tool")
        command.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="an argument; repeat a key for a list")
        command.add_argument(
            "--json",
            nargs="?",
            const=True,
            metavar="ARGUMENTS",
            help="print the whole result as JSON; also takes arguments as a JSON object",
        )
        command.add_argument("--yes", action="store_true", help="accept the questions of the tool")
        _add_target(command)

        command = actions.add_parser("read", help="read a resource")
        command.add_argument("name", metavar="URI", help="the URI of the resource")
        _add_json(command)
        _add_target(command)

        command = actions.add_parser("prompt", help="show the messages of a prompt")
        command.add_argument("name", help="the name of the prompt")
        command.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="an argument")
        _add_json(command)
        _add_target(command)

        command = actions.add_parser("config", help="print the configuration of an MCP client, or write it")
        _add_config(command)

    def run_from_argv(self, argv: list[str]) -> None:
        """As a process of its own, which Ctrl-C ends at once: the thread of a sync tool cannot be cancelled."""
        signal.signal(signal.SIGINT, _interrupted)
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        if problem := sdk_problem():
            raise CommandError(problem)
        # Imported now: the SDK takes most of a second, which --help should not pay.
        from mcp_serving.inspection import command, configure

        with one_line_errors(), hint_for_tracebacks(self._note):
            user = user_named(options["user"]) if options["user"] else None
            try:
                if options["action"] == "config":
                    configure.configure(options, self._out, self._note)
                elif not command.run(options, user, self._out):
                    sys.exit(1)
            except ValueError as error:
                raise CommandError(" ".join(str(error).split())) from error

    def _out(self, text: str) -> None:
        self.stdout.write(text)

    def _note(self, text: str) -> None:
        self.stderr.write(text, lambda line: line)  # without the style of an error


def _interrupted(number: int, _: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, b"\nInterrupted.\n")
    os._exit(128 + number)


def _add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_target(parser: ArgumentParser) -> None:
    parser.add_argument("--user", metavar="NAME", help="the Django user who uses the server; default: nobody")
    parser.add_argument(
        "--server",
        metavar="PATH",
        help="dotted path to the MCP server, or to a callable returning it; default: MCP_SERVING['SERVER']",
    )
    parser.add_argument("--url", metavar="URL", help="use the running server at this address instead")
    parser.add_argument("--token", metavar="TOKEN", help="a bearer token for --url")


def _add_config(parser: ArgumentParser) -> None:
    parser.add_argument(
        "client",
        metavar="CLIENT",
        help="claude-desktop, claude-code, vscode, cursor, codex, gemini, windsurf or inspector",
    )
    parser.add_argument("--http", metavar="URL", help="the address of a running server; default: start runmcp")
    parser.add_argument("--user", metavar="NAME", help="the Django user that runmcp serves; default: nobody")
    parser.add_argument("--token", metavar="TOKEN", help="a bearer token for --http")
    parser.add_argument("--name", metavar="NAME", help="what the client calls the server; default: the server's name")
    parser.add_argument(
        "--server", metavar="PATH", help="dotted path to the MCP server; default: MCP_SERVING['SERVER']"
    )
    parser.add_argument("--write", action="store_true", help="merge it into the client's file, and keep a backup")
