"""The page about traces and metrics: what it says to do, done in the tutorial's project."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.collector import Collector, collecting
from tests.support.documents import DOCS, blocks, environment_of_a_project, project, write_file
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, reserved_port, running, wait_until
from tests.support.raw_http import headers_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PAGE = DOCS / "howto" / "telemetry.md"

BROKEN = """

@server.tool()
def breaks() -> str:
    raise ZeroDivisionError


@server.resource("doc://broken")
def broken() -> str:
    raise IndexError


@server.prompt()
def fails() -> str:
    raise KeyError
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = project(tmp_path / "mysite")
    asgi = folder / "mysite" / "asgi.py"
    asgi.write_text(asgi.read_text().replace("auth=UserTokenVerifier()", "public=True"))
    return folder


def write(folder: Path, *names: str, **replaced: str) -> None:
    """Write the blocks of the page for these files, or the blocks that have these words."""
    for language, code in blocks(PAGE):
        if language == "python" and any(name in code for name in names):
            for old, new in replaced.items():
                code = code.replace(old.removeprefix("_"), new)
            write_file(folder, code)


@contextmanager
def served(folder: Path, **env: str) -> Iterator[str]:
    with reserved_port() as port:
        command = [sys.executable, "-m", "uvicorn", "--port", str(port), "mysite.asgi:application"]
        with running(command, env=environment_of_a_project(**env), cwd=folder) as process:
            process.wait_for("Application startup complete")
            wait_until(lambda: "Uvicorn running" in process.errors, "it listens")
            yield f"http://127.0.0.1:{port}/mcp"


def session(url: str) -> str:
    opened = httpx2.post(url, json=INITIALIZE, headers=headers_of(INITIALIZE), timeout=DEADLINE)
    name: str = opened.headers["mcp-session-id"]
    httpx2.post(url, json=INITIALIZED, headers=headers_of(INITIALIZED, name), timeout=DEADLINE)
    return name


def ask(url: str, opened: str, method: str, **params: object) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx2.post(url, json=message, headers=headers_of(message, opened), timeout=DEADLINE)


def test_prometheus_reads_the_metrics_of_the_page(site: Path) -> None:
    with reserved_port() as port:
        write(site, '"mcp_serving.otel"', "mysite/prometheus.py", "import mysite.prometheus", _9464=str(port))
    with served(site) as url:
        name = session(url)
        assert ask(url, name, "tools/call", name="open_tasks", arguments={}).status_code == 200
        text = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE).text
        shown = re.search(r"^# HELP mcp_serving_sessions.*?(?=^```$)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        assert shown is not None
        assert shown[0] in text
        metrics = re.findall(r"^\| `(mcp\S+)` \| (?:histogram|gauge) ", PAGE.read_text(), re.MULTILINE)
        assert len(metrics) == 7
        for metric in set(metrics) - {"mcp.server.session.duration"}:
            assert metric.replace(".", "_") in text, metric


def attributes_of(table: str) -> set[str]:
    """The names in the first column of a table of the page."""
    _, _, rest = PAGE.read_text().partition(f"| {table} |")
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}


def test_a_collector_receives_the_spans_and_metrics_of_the_page(site: Path) -> None:
    write(site, '"mcp_serving.otel"', "mysite/collector.py")
    asgi = site / "mysite" / "asgi.py"
    asgi.write_text(f"{asgi.read_text()}\nimport mysite.collector\n")
    with collecting() as collector, served(site, **collector.env) as url:
        ask(url, session(url), "tools/call", name="open_tasks", arguments={})
        span = collector.span("tools/call open_tasks")
        known = attributes_of("attribute of operations") | attributes_of("attribute of spans") | {"jsonrpc.request.id"}
        assert set(span.attributes) <= known
        for point in collector.metric("mcp.server.operation.duration"):
            assert set(point) <= attributes_of("attribute of operations")


def _report(collector: Collector, url: str) -> list[str]:
    name = session(url)
    ask(url, name, "tools/call", name="breaks", arguments={})
    ask(url, name, "resources/read", uri="doc://broken")
    ask(url, name, "prompts/get", name="fails")
    for method, params in (
        ("tools/call", {"name": "unknown", "arguments": {}}),
        ("resources/read", {"uri": "doc://unknown"}),
        ("prompts/get", {"name": "unknown"}),
    ):
        ask(url, name, method, **params)  # type: ignore[arg-type]
    ask(url, name, "tools/call", name="breaks", arguments={})
    wait_until(lambda: collector.events.count("ZeroDivisionError") == 2, "the last event")
    return sorted(collector.events)


@pytest.mark.parametrize("debug", [True, False])
def test_sentry_gets_each_exception_once_and_no_mistakes_of_clients(site: Path, debug: bool) -> None:
    write(site, "mysite/errors.py", "import mysite.errors")
    server = site / "mysite" / "mcp.py"
    server.write_text(server.read_text() + BROKEN)
    settings = site / "mysite" / "settings.py"
    settings.write_text(f"{settings.read_text()}\nDEBUG = {debug}\nALLOWED_HOSTS = ['127.0.0.1']\n")
    with collecting() as collector, served(site, SENTRY_DSN=collector.dsn) as url:
        assert _report(collector, url) == ["IndexError", "KeyError", "ZeroDivisionError", "ZeroDivisionError"]
