"""Spans and metrics of real processes, as a collector and Prometheus receive them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from mcp_serving.otel import checks
from tests.support import in_django
from tests.support.asgi_servers import serving
from tests.support.collector import Collector, collecting
from tests.support.harness import DEADLINE, INITIALIZE, ROOT, call, environment, parameters, wait_until
from tests.support.private_redis import Redis
from tests.support.raw_http import headers_of
from tests.support.workers import started

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("users")]

SERVER = "tests.project.telemetry.server"
ENVIRONMENT = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_telemetry"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@dataclass
class Site:
    """A process that serves tests/project/telemetry_asgi.py, and the collector that it exports to."""

    address: str
    collector: Collector

    def ask(self, message: dict[str, Any], session: str | None = None, **headers: str) -> httpx2.Response:
        return httpx2.post(
            f"{self.address}/mcp", json=message, headers={**headers_of(message, session), **headers}, timeout=DEADLINE
        )

    def open_session(self, **headers: str) -> str:
        return str(self.ask(INITIALIZE, **headers).headers["mcp-session-id"])

    def prometheus(self) -> str:
        return httpx2.get(f"{self.address}/metrics", timeout=DEADLINE).text

    def value(self, name: str) -> float:
        """The value of a metric with one point; 0 without one."""
        found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", self.prometheus(), re.MULTILINE)
        return float(found[1]) if found else 0.0


def read(uri: str, request_id: int = 5) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "resources/read", "params": {"uri": uri}}


@contextmanager
def measured(**env: str) -> Iterator[Site]:
    with (
        collecting() as collector,
        serving("uvicorn", "tests.project.telemetry_asgi", env={**ENVIRONMENT, **collector.env, **env}) as (_, address),
    ):
        yield Site(address, collector)


@pytest.fixture(scope="module")
def site(users: None) -> Iterator[Site]:
    with measured(TEST_TRACE_USERS="1") as site:
        yield site


# Spans


def test_a_span_has_the_session_the_uri_the_transport_and_the_user(site: Site) -> None:
    session = site.open_session(**{"X-User": "ann"})
    assert site.ask(read("doc://manual"), session, **{"X-User": "ann"}).status_code == 200
    span = site.collector.span("resources/read")
    assert span.attributes.pop("user.id") == str(in_django.user("ann").pk)
    nonce = span.attributes.pop("mcp.session.id")
    assert len(nonce) > 8
    assert nonce != session
    assert span.attributes == {
        "mcp.method.name": "resources/read",
        "mcp.protocol.version": "2025-11-25",
        "mcp.resource.uri": "doc://manual",
        "jsonrpc.request.id": "5",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
    }


def test_the_user_is_in_no_span_unless_the_setting_allows_it() -> None:
    with measured() as site:
        site.ask(call(1, "in_thread", modern=True), **{"X-User": "ann"})
        assert "user.id" not in site.collector.span("tools/call in_thread").attributes


def test_the_span_of_a_thread_the_call_and_the_http_request_are_one_trace(site: Site) -> None:
    site.ask(call(1, "in_thread", modern=True), **PARENT)
    http = site.collector.span("HTTP POST", lambda span: span.trace_id == TRACE)
    called = site.collector.span("tools/call in_thread", lambda span: span.trace_id == TRACE)
    inner = site.collector.span("work in a thread", lambda span: span.trace_id == TRACE)
    assert (called.parent_id, inner.parent_id) == (http.span_id, called.span_id)


def test_the_spans_of_a_permission_and_of_the_async_orm_are_children_of_the_call(site: Site) -> None:
    other = TRACE.replace("0af7", "2af7")
    site.ask(call(1, "guarded", modern=True), traceparent=f"00-{other}-b7ad6b7169203331-01")
    called = site.collector.span("tools/call guarded", lambda span: span.trace_id == other)
    for name in ("permission", "query"):
        assert site.collector.span(name, lambda span: span.trace_id == other).parent_id == called.span_id


def test_the_trace_of_the_client_is_continued(site: Site) -> None:
    message = call(1, "in_thread", modern=True)
    other = TRACE.replace("0af7", "1af7")
    message["params"]["_meta"] = {**message["params"]["_meta"], "traceparent": f"00-{other}-b7ad6b7169203331-01"}
    site.ask(message)
    span = site.collector.span("tools/call in_thread", lambda span: span.trace_id == other)
    assert span.parent_id == "b7ad6b7169203331"


def test_a_relayed_call_stays_in_its_trace(redis: Redis) -> None:
    with collecting() as collector:
        env = {**ENVIRONMENT, **collector.env}
        with started("uvicorn", 2, redis, "tests.project.telemetry_asgi", env=env) as workers:
            home, away = (Site(worker.address, collector) for worker in workers)
            assert away.ask(call(1, "in_thread"), home.open_session(), **PARENT).status_code == 200
            http = collector.span("HTTP POST", lambda span: span.trace_id == TRACE)
            called = collector.span("tools/call in_thread", lambda span: span.trace_id == TRACE)
            inner = collector.span("work in a thread", lambda span: span.trace_id == TRACE)
            assert (called.parent_id, inner.parent_id) == (http.span_id, called.span_id)


def test_the_exception_of_a_tool_or_resource_is_in_its_span_once(site: Site) -> None:
    site.ask(call(1, "breaks", modern=True))
    site.ask(call(2, "says_no", modern=True))
    site.ask(read("doc://broken"), site.open_session())
    broken = site.collector.span("tools/call breaks")
    assert (broken.is_error, broken.attributes["error.type"], broken.exceptions) == (
        True,
        "tool_error",
        ["ZeroDivisionError"],
    )
    refused = site.collector.span("tools/call says_no")
    assert (refused.is_error, refused.attributes["error.type"], refused.exceptions) == (True, "tool_error", [])
    unread = site.collector.span("resources/read", lambda span: span.is_error)
    assert (unread.attributes["error.type"], unread.exceptions) == ("-32603", ["ZeroDivisionError"])


def test_a_call_whose_client_leaves_is_cancelled_in_its_span_and_in_the_metrics(site: Site) -> None:
    message = call(1, "sleeps", modern=True)
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{site.address}/mcp", json=message, headers=headers_of(message), timeout=1)
    span = site.collector.span("tools/call sleeps")
    assert (span.is_error, span.attributes["error.type"], span.exceptions) == (True, "cancelled", [])
    wait_until(lambda: 'error_type="cancelled"' in site.prometheus(), "the metric")


# Metrics


def test_the_duration_of_operations_has_the_names_that_the_server_knows_and_no_others(site: Site) -> None:
    for number in range(3):
        site.ask(call(1, "in_thread", modern=True))
        site.ask(call(1, f"invented-{number}", modern=True))
        site.ask({"jsonrpc": "2.0", "id": 1, "method": f"invented/{number}"}, site.open_session())
    text = wait_until(
        lambda: (text := site.prometheus()) and '"_OTHER"' in text and 'gen_ai_tool_name="in_thread"' in text and text,
        "the metrics",
    )
    assert "invented" not in text
    line = next(each for each in text.splitlines() if 'le="300' in each and '"in_thread"' in each)
    assert line.startswith("mcp_server_operation_duration_seconds_bucket{")
    for label in (
        'mcp_method_name="tools/call"',
        'mcp_protocol_version="2026-07-28"',
        'network_transport="tcp"',
        'gen_ai_operation_name="execute_tool"',
    ):
        assert label in line
    failed = [each for each in text.splitlines() if each.startswith("mcp_server_operation_duration_seconds_count")]
    assert any('error_type="tool_error"' in each for each in failed)
    assert any('rpc_response_status_code="-32601"' in each and '"_OTHER"' in each for each in failed)
    points = site.collector.metric("mcp.server.operation.duration")
    assert any(point.get("gen_ai.tool.name") == "in_thread" for point in points)


def test_the_duration_of_a_session_is_measured_when_it_ends() -> None:
    with measured() as site:
        site.ask(call(1, "in_thread", modern=True))  # without a session
        session = site.open_session()
        assert "mcp_server_session_duration" not in site.prometheus()
        headers = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
        assert httpx2.delete(f"{site.address}/mcp", headers=headers).status_code == 200
        wait_until(lambda: site.value("mcp_server_session_duration_seconds_count") == 1, "the session")
        assert 'mcp_protocol_version="2025-11-25"' in site.prometheus()


def test_the_gauges_count_calls_threads_sessions_and_streams() -> None:
    with measured() as site:
        session = site.open_session()
        threads = [threading.Thread(target=site.ask, args=(call(number, "waits"), session)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        headers = {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25", "Accept": "text/event-stream"}
        with httpx2.stream("GET", f"{site.address}/mcp", headers=headers, timeout=DEADLINE) as stream:
            assert stream.status_code == 200
            expected = {
                "mcp_serving_calls_in_flight": 3,
                "mcp_serving_threads_busy": 1,
                "mcp_serving_calls_waiting": 2,
                "mcp_serving_sessions": 1,
                "mcp_serving_streams": 1,
            }
            for name, value in expected.items():
                wait_until(lambda name=name, value=value: site.value(name) == value, f"{name} is {value}")
        site.ask(call(9, "release"), session)
        for thread in threads:
            thread.join(DEADLINE)
        for name in ("mcp_serving_calls_in_flight", "mcp_serving_threads_busy", "mcp_serving_streams"):
            wait_until(lambda name=name: site.value(name) == 0, f"{name} is 0")


def test_over_stdio_the_transport_is_a_pipe_and_nothing_is_lost_at_the_end() -> None:
    """The last spans and the session are exported when the process ends."""

    async def work(collector: Collector) -> None:
        process = parameters("--server", SERVER, **ENVIRONMENT, **collector.env)
        with anyio.fail_after(DEADLINE):
            async with Client(stdio_client(process)) as client:
                await client.call_tool("in_thread", {})

    with collecting() as collector:
        anyio.run(work, collector)
        assert collector.span("tools/call in_thread").attributes["network.transport"] == "pipe"
        assert [point["network.transport"] for point in collector.metric("mcp.server.session.duration")] == ["pipe"]


# What is not installed costs nothing


def test_only_the_api_of_opentelemetry_is_needed_at_run_time() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = sys.modules['prometheus_client'] = None\n"
        "import django; django.setup()\n"
        "import mcp_serving.otel.operations, mcp_serving.instruments as hooks\n"
        "sys.exit(len(hooks.middleware) != 1)"
    )
    env = environment(**ENVIRONMENT)
    assert subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_project_without_the_app_imports_nothing_of_it() -> None:
    code = (
        "import sys, tests.project.workers_asgi, mcp_serving.instruments as hooks\n"
        "sys.exit('mcp_serving.otel' in sys.modules or bool(hooks.middleware or hooks.carriers))"
    )
    env = environment(**in_django.ENVIRONMENT)
    assert subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, timeout=60, check=False).returncode == 0


def test_installing_the_app_does_not_load_the_sdk_of_mcp() -> None:
    code = "import sys, django; django.setup(); sys.exit('mcp' in sys.modules)"
    env = environment(**ENVIRONMENT)
    assert subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, timeout=60, check=False).returncode == 0


def test_the_check_reports_an_api_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.30.0", "1.45.2", "2.0"):
        monkeypatch.setattr(checks, "version", lambda _, version=version: version)
        assert checks.check_api() == []
    monkeypatch.setattr(checks, "version", lambda _: "1.29.1")
    (error,) = checks.check_api()
    assert error.msg == "mcp_serving.otel needs opentelemetry-api 1.30 or later; 1.29.1 is installed."
