"""A collector of OpenTelemetry: receives spans and metrics over HTTP, in protobuf."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.harness import wait_until


@dataclass
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    exceptions: list[str]
    is_error: bool


@dataclass
class Collector:
    port: int = 0
    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The attributes of the last points of each metric."""

    events: list[str] = field(default_factory=list)
    """The type of the last exception of each event of Sentry."""

    @property
    def env(self) -> dict[str, str]:
        """For a process that exports to it, often."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def span(self, name: str, wanted: Callable[[Span], bool] = lambda _: True) -> Span:
        """The first span of this name, as soon as it is there."""
        found: Span = wait_until(
            lambda: next((each for each in list(self.spans) if each.name == name and wanted(each)), None),
            f"a span {name!r}; there are {[each.name for each in self.spans]}",
        )
        return found

    def metric(self, name: str) -> list[dict[str, Any]]:
        return wait_until(lambda: self.metrics.get(name), f"a metric {name!r}")  # type: ignore[no-any-return]

    @property
    def dsn(self) -> str:
        """For Sentry."""
        return f"http://key@127.0.0.1:{self.port}/1"

    def receive(self, path: str, body: bytes) -> None:
        if path.endswith("/envelope/"):
            items = [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]
            exceptions = [item["exception"]["values"] for item in items if "exception" in item]
            self.events += [values[0]["type"] for values in exceptions]
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans += map(_span, scope.spans)
        elif path == "/v1/metrics":
            for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for of_scope in of_resource.scope_metrics:
                    for metric in of_scope.metrics:
                        data = getattr(metric, metric.WhichOneof("data"))
                        self.metrics[metric.name] = [_plain(point.attributes) for point in data.data_points]


def _span(span: Any) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_plain(span.attributes),
        exceptions=[_plain(event.attributes)["exception.type"] for event in span.events if event.name == "exception"],
        is_error=span.status.code == 2,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.receive(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
