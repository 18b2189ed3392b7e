"""The middle of a graceful shutdown: finish the calls, end the streams, cancel what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mcp_serving.shutdown.deadline import Deadline
from mcp_serving.shutdown.in_flight import InFlightRequests


async def drain(*in_flights: InFlightRequests, end_subscriptions: Callable[[], None]) -> None:
    """The middle of a shutdown: take nothing new, let the calls in flight finish, then end the streams."""
    for in_flight in in_flights:
        in_flight.draining = True
    for in_flight in in_flights:
        await in_flight.calls_answered()
    end_subscriptions()
    for in_flight in in_flights:
        for stream in in_flight.streams:
            stream.end()
    for in_flight in in_flights:
        await in_flight.empty()


async def cancel_remaining(deadline: Deadline, *in_flights: InFlightRequests) -> None:
    """Past the time of a shutdown: cancel by the mildest means, and answer in place of what that does not end."""
    for in_flight in in_flights:
        for exchange in in_flight.left:
            exchange.cancel()
    with deadline.scope(share=0.2):
        for in_flight in in_flights:
            await in_flight.settled()
    # Side by side: each may have to wait for a client that does not read.
    await asyncio.gather(*(exchange.abandon() for in_flight in in_flights for exchange in in_flight.left))
