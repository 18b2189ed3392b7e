import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand

from mcp_serving import notify_resource_updated, notify_tools_changed


class Command(BaseCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("uris", nargs="*")

    def handle(self, *, uris: list[str], **_: Any) -> None:
        for uri in uris:
            notify_resource_updated(uri)
        if not uris:
            notify_tools_changed()
        assert "mcp" not in sys.modules
