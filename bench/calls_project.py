"""The server of ``bench.calls``. Its tool ``switch`` decides whether calls are recorded or traced."""

import threading
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from bench.orm_project import build_daphne, server
from mcp_serving import instruments
from mcp_serving.calls.writer import store
from mcp_serving.otel.operations import OperationMiddleware
from mcp_serving.record_queue import flush_queues
from mcp_serving.signals import call_finished, listeners

__all__ = ["build_daphne", "server"]


class Switch(Sampler):
    """Whether calls are traced and measured now."""

    is_on = False

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE if self.is_on else Decision.DROP)

    def get_description(self) -> str:
        return "switch"

    def middleware(self, low_level: Any) -> Any:
        """The middleware of the app, while it is on."""
        measured = OperationMiddleware(low_level)

        async def measure(ctx: Any, call_next: Any) -> Any:
            return await (measured(ctx, call_next) if self.is_on else call_next(ctx))

        return measure


class Nowhere(SpanExporter):
    """Sends nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


tracing = Switch()
provider = TracerProvider(sampler=tracing)
provider.add_span_processor(BatchSpanProcessor(Nowhere()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))
instruments.middleware.append(tracing.middleware)


def receive(**_: Any) -> None:
    """A receiver that does nothing."""


@server.tool()
async def switch(side: str) -> str:
    """Let nobody, a receiver of the signal, the app or OpenTelemetry have the calls from now on."""
    call_finished.disconnect(receive)
    listeners.clear()
    tracing.is_on = side == "otel"
    if side == "record":
        call_finished.connect(receive)
    if side == "app":
        listeners.append(store)
    return "answer: 0"


@server.tool()
async def flush() -> str:
    """Return when all records are delivered."""
    await flush_queues(10)
    return "answer: 0"


@server.tool()
def count() -> str:
    """How many calls are stored."""
    from mcp_serving.calls.models import Call

    return f"answer: {Call.objects.count()}"


@server.tool()
async def delivery_thread(name: str) -> str:
    """The system's number of a thread that delivers records."""
    return f"answer: {next(each.native_id for each in threading.enumerate() if each.name == name)}"
