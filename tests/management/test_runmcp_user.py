"""``runmcp --user``: who uses the server over stdio."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters

from tests.support.harness import DEADLINE, ROOT

pytestmark = pytest.mark.process

CREATE = "from django.contrib.auth.models import User; User.objects.create(username='gone', is_active=False)"
DELETE = "from django.contrib.auth.models import User; User.objects.get(username='gone').delete()"


def runmcp(shop: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "runmcp", *arguments],
        cwd=ROOT,
        env=shop,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_named_user_sees_the_tools_of_their_role(mode: str, shop: dict[str, str]) -> None:
    async def tools(*arguments: str) -> set[str]:
        server = StdioServerParameters(
            command=sys.executable, args=["manage.py", "runmcp", *arguments], env=shop, cwd=ROOT
        )
        async with Client(server, mode=mode) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    nobody = anyio.run(tools)
    clerk = anyio.run(tools, "--user", "clerk")
    manager = anyio.run(tools, "--user", "manager")
    assert clerk - nobody == {"cancel_order", "restock_product"}
    assert manager - clerk == {"refund_order"}


def test_an_unknown_user_is_an_error_in_one_line(shop: dict[str, str]) -> None:
    done = runmcp(shop, "--user", "stranger")
    assert done.returncode == 1
    assert done.stderr == "CommandError: --user: there is no user 'stranger'.\n"


def test_an_inactive_user_is_an_error_in_one_line(shop: dict[str, str]) -> None:
    shell = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c"]
    subprocess.run([*shell, CREATE], cwd=ROOT, env=shop, check=True)
    done = runmcp(shop, "--user", "gone")
    subprocess.run([*shell, DELETE], cwd=ROOT, env=shop, check=True)
    assert done.returncode == 1
    assert done.stderr == "CommandError: --user: the user 'gone' is not active.\n"


def test_a_failed_lookup_of_the_user_is_an_error_in_one_line(shop: dict[str, str]) -> None:
    done = runmcp({**shop, "EXAMPLE_DB": ":memory:"}, "--user", "clerk")
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: --user: the user 'clerk' cannot be looked up: OperationalError")
    assert len(done.stderr.splitlines()) == 1


def test_a_user_over_http_is_refused(shop: dict[str, str]) -> None:
    done = runmcp(shop, "--user", "clerk", "--transport", "http")
    assert done.returncode == 1
    assert done.stderr == "CommandError: --user clerk is for stdio: over HTTP, each request has its own user.\n"
