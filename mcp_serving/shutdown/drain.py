"""The middle of a graceful shutdown: finish the calls, end the streams, cancel the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import CANCELLED_SECONDS, InFlightRequests

MAX_GRACE_SECONDS = 1.0
"""Seconds that calls get at the most if the event loop was held up beyond the deadline."""


async def drain(*in_flights: InFlightRequests, end_subscriptions: Callable[[], None]) -> None:
    """Refuse new requests, wait for the calls in flight, then end the streams."""
    for in_flight in in_flights:
        in_flight.draining = True
    for in_flight in in_flights:
        await in_flight.calls_answered()
    end_subscriptions()
    for in_flight in in_flights:
        for stream in in_flight.streams:
            stream.end()
    for in_flight in in_flights:
        await in_flight.all_closed()


async def drain_after_delay(
    deadline: Deadline, *in_flights: InFlightRequests, end_subscriptions: Callable[[], None]
) -> None:
    """Drain a little longer if the event loop was held up beyond the deadline, by SIGSTOP for example.

    Calls that have finished meanwhile have had no chance to be answered.
    """
    with anyio.move_on_after(min(deadline.lateness, MAX_GRACE_SECONDS)):
        await drain(*in_flights, end_subscriptions=end_subscriptions)


async def cancel_remaining(deadline: Deadline, *in_flights: InFlightRequests) -> None:
    """After the deadline of a shutdown: cancel the handlers, then respond in place of those that have not ended."""
    for in_flight in in_flights:
        for request in in_flight.running:
            request.cancel()
    with deadline.scope(share=0.2):
        for in_flight in in_flights:
            await in_flight.all_ended()
    # At the same time: each may have to wait for a client that does not read.
    await asyncio.gather(*(request.abandon() for in_flight in in_flights for request in in_flight.running))


async def end_unawaited_tasks() -> None:
    """Cancel the tasks that a tool or the lifespan has started and nobody awaits, and let them clean up."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks and (await asyncio.wait(tasks, timeout=CANCELLED_SECONDS))[1]:
        return  # a task that waits for a thread still uses its async generators
    await asyncio.get_running_loop().shutdown_asyncgens()
