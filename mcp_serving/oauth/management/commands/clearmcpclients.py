from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from mcp_serving.oauth.provider.registrations import remove_unused


class Command(BaseCommand):
    help = "Removes MCP clients that registered themselves and that no user has connected."
    requires_system_checks: list[str] = []  # noqa: RUF012 - they import the project's URLs, and so the MCP SDK

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--days",
            type=int,
            default=7,
            help="how many days ago a client has to have registered; default: %(default)s",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        days = options["days"]
        if not 0 <= days <= 36500:
            raise CommandError(f"--days is {days}; it has to be a number from 0 to 36500.")
        try:
            number = remove_unused(timedelta(days=days))
        except Error as error:
            raise CommandError(f"The database cannot be used: {error}. Has `manage.py migrate` been run?") from error
        self.stdout.write(f"Removed {number} unused {'client' if number == 1 else 'clients'}.")
