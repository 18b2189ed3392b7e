"""What a handler raises ends its own call only."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def isolate_call(call: Awaitable[T]) -> T:
    """Let a handler end its own call only, whatever it raises.

    An exception that is no ``Exception``, ``sys.exit()`` among them, would end the SDK's loop or session
    manager, and with it every other call. So would a ``CancelledError`` that nobody's cancellation caused:
    awaiting a task of its own that was cancelled is enough.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if anyio.current_effective_deadline() == -math.inf:  # somebody means it
            raise
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        raise RuntimeError("The handler was cancelled from within.") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"The handler raised {type(error).__name__}, which is no Exception.") from error
