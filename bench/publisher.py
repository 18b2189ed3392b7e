"""Publishes notifications, in a process that serves nothing: so many for each line of standard input."""

from __future__ import annotations

import sys

import django

from mcp_serving import notify_resource_updated

django.setup()
for line in sys.stdin:
    for _ in range(int(line)):
        notify_resource_updated("bench://item")
