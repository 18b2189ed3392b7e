"""A server that is traced and measured: traces go to a collector, metrics to it and to Prometheus."""

import threading

import anyio
from asgiref.sync import sync_to_async
from mcp.server.mcpserver.exceptions import ToolError
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from mcp_serving import MCPServer
from mcp_serving.users import get_user

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
readers = [PrometheusMetricReader(), PeriodicExportingMetricReader(OTLPMetricExporter())]
metrics.set_meter_provider(MeterProvider(metric_readers=readers))
tracer = trace.get_tracer("project")

server = MCPServer("measured", max_threads=1)
released = threading.Event()


@server.tool()
def in_thread() -> str:
    with tracer.start_as_current_span("work in a thread"):
        return str(get_user())


def may(user: object) -> bool:
    with tracer.start_as_current_span("permission"):
        return True


@server.tool(permission=may)
async def guarded() -> str:
    def query() -> str:
        with tracer.start_as_current_span("query"):
            return "found"

    return await sync_to_async(query)()  # as the async ORM does


@server.tool()
def waits() -> str:
    """Waits for the tool "release"."""
    released.wait(60)
    return "released"


@server.tool()
async def sleeps() -> None:
    await anyio.sleep(60)


@server.tool()
async def release() -> str:
    released.set()
    return "done"


@server.tool()
def breaks() -> str:
    raise ZeroDivisionError("by zero")


@server.tool()
def says_no() -> str:
    raise ToolError("no")


@server.resource("doc://{name}")
def doc(name: str) -> str:
    if name == "broken":
        raise ZeroDivisionError("by zero")
    return name
