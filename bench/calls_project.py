"""The server of ``bench.orm``, whose calls are recorded or not: the tool ``switch`` decides."""

from typing import Any

from bench.orm_project import build_daphne, server
from mcp_serving.calls.writer import store
from mcp_serving.signals import call_finished, listeners

__all__ = ["build_daphne", "server"]


def receive(**_: Any) -> None:
    """A receiver that does nothing."""


@server.tool()
async def switch(side: str) -> str:
    """Let nobody, a receiver of the signal, or the app have the records from now on."""
    call_finished.disconnect(receive)
    listeners.clear()
    if side == "record":
        call_finished.connect(receive)
    if side == "app":
        listeners.append(store)
    return side


@server.tool()
def count() -> str:
    """How many calls are stored."""
    from mcp_serving.calls.models import Call

    return f"stored {Call.objects.count()}"
