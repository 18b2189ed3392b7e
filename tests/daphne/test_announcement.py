"""Over HTTP: the mount beside Django's routes, under every way of serving it."""

from __future__ import annotations

import urllib.request

import anyio
import pytest
from mcp import Client

from tests.support.harness import serving_http

pytestmark = pytest.mark.process


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_calls_a_tool_beside_djangos_views(mode: str) -> None:
    with serving_http() as (_, address):

        async def talk() -> None:
            async with Client(f"{address}/mcp", mode=mode) as client:
                result = await client.call_tool("state", {})
                assert result.content[0].text == "shared"  # type: ignore[union-attr]

        anyio.run(talk)
        assert urllib.request.urlopen(f"{address}/quick/").read() == b"quick"
