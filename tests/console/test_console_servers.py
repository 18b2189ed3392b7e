"""The console under several servers: another worker answers, and a shutdown waits for nobody."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.access_servers import logged_in
from tests.support.console import serving_console, staff
from tests.support.harness import DEADLINE, Notes, shared_cache

pytestmark = pytest.mark.process


@contextmanager
def visiting(address: str, user: str) -> Iterator[httpx2.Client]:
    """A client that is logged in, and sends the CSRF token with each request."""
    with httpx2.Client(base_url=f"{address}/mcp-console/", headers=logged_in(user), timeout=DEADLINE) as client:
        page = client.get("tools/who/")
        token = page.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
        client.headers["X-CSRFToken"] = token
        client.headers["Cookie"] += f"; csrftoken={page.cookies['csrftoken']}"
        yield client


def events(answer: httpx2.Response) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in answer.text.split("\n\n")]
    return [(lines[0][7:], json.loads(lines[1][6:])) for lines in blocks if lines[0].startswith("event: ")]


def test_another_worker_goes_on_with_a_call_whose_question_was_answered(users_of_its_own: None, tmp_path: Path) -> None:
    staff("clerk")
    notes = Notes(tmp_path / "notes")
    cache = shared_cache(tmp_path / "cache")
    with (
        serving_console("runmcp", notes.path, **cache) as (_, first),
        serving_console("uvicorn", notes.path, **cache) as (_, second),
        visiting(first, "clerk") as one,
        visiting(second, "clerk") as other,
    ):
        asked = events(one.post("tools/delete/call/", data={"mode": "json", "raw": '{"name": "tea"}'}))
        assert [name for name, _ in asked] == ["request", "question"]
        fields = _hidden_fields(asked[1][1]["html"])
        answered = events(other.post("tools/delete/call/", data={**fields, "action": "accept"}))
        assert answered[-1][0] == "result"
        assert "deleted tea" in answered[-1][1]["json"]
        again = events(one.post("tools/delete/call/", data={**fields, "action": "accept", "sent": '{"name": "milk"}'}))
        assert "deleted milk" not in again[-1][1].get("json", "")
    assert [line for line in notes.all() if line.startswith("deleted")] == ["deleted tea"]


def _hidden_fields(html: str) -> dict[str, str]:
    from html.parser import HTMLParser

    found = {}

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if tag == "input" and given.get("type") == "hidden" and given.get("name") != "csrfmiddlewaretoken":
                found[str(given["name"])] = str(given["value"])

    Parser().feed(html)
    return found


@pytest.mark.parametrize("server", ["runmcp", "uvicorn"])
def test_a_shutdown_ends_a_subscription_of_the_console(server: str, users_of_its_own: None, tmp_path: Path) -> None:
    staff("clerk")
    with (
        serving_console(server, tmp_path / "notes") as (process, address),
        visiting(address, "clerk") as client,
        client.stream("GET", "notifications/stream/") as answer,
    ):
        lines = answer.iter_lines()
        assert any(line == "event: open" for line in lines)
        process.signal(signal.SIGTERM)
        assert any(line == "event: end" for line in lines)
        assert process.wait() in (0, -signal.SIGTERM)
