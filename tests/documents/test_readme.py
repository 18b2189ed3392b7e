"""The steps of README.md, followed in a new Django project."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp import Client

from tests.documents.walkthrough import follow, new_project, shell
from tests.support.harness import DEADLINE, ROOT

README = ROOT / "README.md"


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_steps_of_the_readme_lead_to_a_first_tool_call_over_stdio_and_then_over_http(tmp_path: Path) -> None:
    with shell(tmp_path) as first, shell(tmp_path) as second:
        project = new_project(first, tmp_path)
        port = follow(README, first, second, project)
        anyio.run(count_users, f"http://127.0.0.1:{port}/mcp")
        assert first.interrupt() == 0


async def count_users(server: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with Client(server) as client:
            result = await client.call_tool("count_users", {})
            assert result.structured_content == {"result": 0}


def test_the_readme_has_at_most_150_lines_and_the_installation_within_the_first_thirty() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    assert "$ pip install mcp-serving" in lines[:30]


def test_the_architecture_has_at_most_250_lines() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 250
