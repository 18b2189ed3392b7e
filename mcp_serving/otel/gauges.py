"""Gauges of calls in flight, sessions, streams and threads. A reader of metrics calls them in another thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

if TYPE_CHECKING:
    from mcp_serving.runtime import Runtime


def create() -> None:
    """Create the gauges."""
    meter = metrics.get_meter("mcp_serving")
    for name, unit, description, count in (
        ("mcp_serving.calls.in_flight", "{call}", "Requests whose handler runs.", _calls),
        ("mcp_serving.sessions", "{session}", "Open sessions of clients up to 2025-11-25 over HTTP.", _sessions),
        ("mcp_serving.streams", "{stream}", "Open streams: GET, subscriptions/listen, WebSockets.", _streams),
        ("mcp_serving.threads.busy", "{thread}", "Threads that run a sync function.", _busy),
        ("mcp_serving.calls.waiting", "{call}", "Sync functions that wait for a thread.", _waiting),
    ):
        meter.create_observable_gauge(name, [_for_each_server(count)], unit, description)


def _for_each_server(count: Callable[[Runtime], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        module = sys.modules.get("mcp_serving.runtime")
        if module is None:  # nothing is served
            return []
        counts: dict[str, int] = {}
        for runtime in module.runtimes_of_process():
            counts[runtime.server.name] = counts.get(runtime.server.name, 0) + count(runtime)
        return [Observation(value, {"mcp.server.name": name}) for name, value in counts.items()]

    return observe


def _calls(runtime: Runtime) -> int:
    return runtime.in_flight.handled_calls


def _streams(runtime: Runtime) -> int:
    return len(runtime.in_flight.streams)


def _sessions(runtime: Runtime) -> int:
    from mcp_serving.asgi import lifecycle

    handlers: list[Any] = lifecycle.handlers_of(runtime.server)
    started = [runtime.running_service(handler) for handler in handlers]
    return sum(application.session_count for application in started if application is not None)


def _busy(runtime: Runtime) -> int:
    threads = runtime.threads
    return 0 if threads is None else threads.busy


def _waiting(runtime: Runtime) -> int:
    threads = runtime.threads
    return 0 if threads is None else threads.waiting
