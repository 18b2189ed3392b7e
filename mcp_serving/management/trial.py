"""``python -m mcp_serving.management.trial PATH ...``: whether Django starts and the dotted paths can be imported."""

from __future__ import annotations

import sys

import django
from django.core.exceptions import ImproperlyConfigured

from mcp_serving import loading


def main(paths: list[str]) -> None:
    try:
        django.setup()
        for path in paths:
            loading.load(path)
        loading.discover()
    except Exception as error:
        cause = str(error) if isinstance(error, ImproperlyConfigured) else loading.cause_of(error)
        sys.exit(f"The old code is still served, because the new code fails: {cause}")


if __name__ == "__main__":
    main(sys.argv[1:])
