"""The tools that every project serves."""

import time


def echo(text: str) -> str:
    return text


def wait(seconds: float) -> str:
    """A call in flight."""
    time.sleep(seconds)
    return "waited"
