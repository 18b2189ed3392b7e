from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from mcp_serving import conf
from mcp_serving.calls.models import Call


class Command(BaseCommand):
    help = "Removes the stored MCP calls that are older than MCP_SERVING['CALL_RETENTION_DAYS']. For cron."
    requires_system_checks: list[str] = []  # noqa: RUF012 - they import the project's URLs, and so the MCP SDK

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, help="another number of days than the setting's")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            days = conf.configuration().call_retention_days if options["days"] is None else options["days"]
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if not 0 <= days <= 36500:
            raise CommandError(f"--days is {days}; it has to be a number from 0 to 36500.")
        try:
            number = Call.objects.all().remove_older_than(days)
        except Error as error:
            raise CommandError(f"The database cannot be used: {error}. Has `manage.py migrate` been run?") from error
        self.stdout.write(f"Removed {number} {'call' if number == 1 else 'calls'}.")
