"""Settings that print to standard output, with an app that prints when it is ready."""

import os

from tests.project.settings import *  # noqa: F403
from tests.project.settings import INSTALLED_APPS

print("printed by the settings", flush=True)
os.write(1, b"written by the settings to descriptor 1\n")
INSTALLED_APPS = [*INSTALLED_APPS, "tests.project.printing"]
