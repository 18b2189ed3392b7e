"""``python -m mcp_serving``: ``manage.py runmcp`` that protects standard output before the settings are imported.

``manage.py`` imports the settings and the apps before it starts a command. Over stdio, text that they print would reach
the client in front of the first message. Here, standard output is claimed before Django is imported.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from mcp_serving.errors import ListenError
from mcp_serving.management.process import exit_at_once, open_closed_descriptors
from mcp_serving.stdio.streams import StandardStreams


def main() -> None:
    open_closed_descriptors()
    streams = None
    with suppress(ListenError):  # closed: the transport http does not need them, and runmcp refuses the others
        streams = StandardStreams()

    import django
    from django.core.management.base import CommandParser, handle_default_options

    from mcp_serving.loading import cause_of

    arguments = sys.argv[1:]
    parser = CommandParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    handle_default_options(parser.parse_known_args(arguments)[0])
    try:
        django.setup()
    except Exception as error:
        print(f"The settings or an app cannot be imported: {cause_of(error)}.", file=sys.stderr)
        exit_at_once(1)

    from mcp_serving.management.commands.runmcp import Command

    command = Command()
    command.streams = streams
    command.run_from_argv(["python -m mcp_serving", "", *arguments])


if __name__ == "__main__":
    main()
