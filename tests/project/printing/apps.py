import sys

from django.apps import AppConfig


class PrintingConfig(AppConfig):
    name = "tests.project.printing"

    def ready(self) -> None:
        print("printed by the app when it was ready", flush=True)
        sys.stdout.write("written by the app without a flush")
