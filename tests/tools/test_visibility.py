"""Hidden means hidden in every method; missing objects, unknown names, and errors with DEBUG on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import Completion, PromptReference, ResourceTemplateReference

from tests.support import in_django
from tests.support.harness import DEADLINE

from django.contrib.auth.models import User  # isort: skip - after Django is set up
from django.db import connection  # isort: skip
from django.http import Http404  # isort: skip
from django.test import override_settings  # isort: skip
from django.test.utils import CaptureQueriesContext  # isort: skip

from mcp_serving import MCPServer  # isort: skip
from mcp_serving.testing import client  # isort: skip

pytestmark = pytest.mark.usefixtures("users")
MODES = ["auto", "legacy"]
assert in_django


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


completed: list[str] = []


def make_server() -> MCPServer[Any]:
    server = MCPServer("hidden")

    @server.tool(permission="auth.view_user")
    def secret_tool() -> str:
        return "secret"

    @server.resource("hid://t/{name}", permission="auth.view_user")
    def secret(name: str) -> str:
        return name

    @server.resource("open://{name}")
    def visible(name: str) -> str:
        return name

    @server.prompt(permission="auth.view_user")
    def secret_prompt(name: str) -> str:
        return name

    @server.completion()
    def complete(ref: Any, argument: Any, context: Any) -> Completion:
        completed.append(getattr(ref, "uri", None) or ref.name)
        return Completion(values=["value"])

    return server


ARGUMENT = {"name": "name", "value": "v"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("uri", ["hid://t/{name}", "hid://t/secret", "hid://t/%73ecret", "missing://x"])
def test_a_hidden_template_is_not_completed_under_any_of_its_uris(uri: str, mode: Any) -> None:
    completed.clear()
    ann, clerk = in_django.user("ann"), in_django.user("clerk")

    async def work() -> None:
        for user in (None, ann):
            async with client(make_server(), user=user, mode=mode) as session:
                found = await session.complete(ResourceTemplateReference(uri=uri), ARGUMENT)
                assert found.completion.values == []
        async with client(make_server(), user=clerk, mode=mode) as session:
            found = await session.complete(ResourceTemplateReference(uri=uri), ARGUMENT)
            assert found.completion.values == ([] if uri == "missing://x" else ["value"])

    run(work)
    assert completed == ([] if uri == "missing://x" else [uri])


def queries_of(work: Callable[[Client], Coroutine[Any, Any, Any]]) -> int:
    ann = in_django.user("ann")
    with CaptureQueriesContext(connection) as captured:

        async def call() -> None:
            async with client(make_server(), user=ann) as session:
                with suppress(MCPError):
                    await work(session)

        run(call)
    return len(captured)


@pytest.mark.parametrize(
    ("hidden", "missing"),
    [
        (lambda s: s.call_tool("secret_tool", {}), lambda s: s.call_tool("other_tool", {})),
        (lambda s: s.read_resource("hid://t/x"), lambda s: s.read_resource("other://t/x")),
        (lambda s: s.get_prompt("secret_prompt", {"name": "x"}), lambda s: s.get_prompt("other_prompt", {"name": "x"})),
        (
            lambda s: s.complete(PromptReference(name="secret_prompt"), ARGUMENT),
            lambda s: s.complete(PromptReference(name="other_prompt"), ARGUMENT),
        ),
    ],
    ids=["tool", "resource", "prompt", "completion"],
)
def test_a_hidden_name_and_a_missing_one_cost_the_same_queries(hidden: Any, missing: Any) -> None:
    assert queries_of(hidden) == queries_of(missing) > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("uri", ["users://9999", "users://nobody", "users404://9999", "users404://no-number"])
def test_a_missing_object_and_an_invalid_uri_are_not_found_with_one_line_in_the_log(
    uri: str, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = MCPServer("resources")

    @server.resource("users://{pk}")
    def user(pk: int) -> str:
        return User.objects.get(pk=pk).username

    @server.resource("users404://{pk}")
    async def user_404(pk: int) -> str:
        raise Http404

    errors: list[MCPError] = []

    async def work() -> None:
        async with client(server, mode=mode) as session:
            with pytest.raises(MCPError) as raised:
                await session.read_resource(uri)
            errors.append(raised.value)

    with caplog.at_level(logging.INFO):
        run(work)
    assert errors[0].error.message == f"Unknown resource: {uri}"
    (record,) = [each for each in caplog.records if "Resource" in each.getMessage()]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("debug", [True, False])
def test_the_client_sees_the_text_of_an_exception_only_with_debug_on(debug: bool, mode: Any) -> None:
    server = MCPServer("failing")

    @server.tool()
    def tool() -> str:
        raise ValueError("a detail")

    @server.resource("r://one")
    def resource() -> str:
        raise ValueError("a detail")

    @server.prompt()
    def prompt() -> str:
        raise ValueError("a detail")

    seen: list[str] = []

    async def work() -> None:
        async with client(server, mode=mode) as session:
            seen.append((await session.call_tool("tool", {})).content[0].text)  # type: ignore[union-attr]
            for failing in (session.read_resource("r://one"), session.get_prompt("prompt")):
                with pytest.raises(MCPError) as raised:
                    await failing
                seen.append(raised.value.error.message)

    if mode == "legacy" and not debug:
        pytest.skip("the runtime, which the client for tests leaves out, hides the text of a prompt's exception")
    with override_settings(DEBUG=debug):
        run(work)
    assert ["ValueError: a detail" in text for text in seen] == [debug] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_long_name_is_not_repeated_in_full(mode: Any) -> None:
    long = "x" * 100_000

    async def work() -> None:
        async with client(make_server(), mode=mode) as session:
            assert len((await session.call_tool(long, {})).content[0].text) < 1000  # type: ignore[union-attr]
            for failing in (session.get_prompt(long), session.get_prompt("secret_prompt", {long: "x", "name": "y"})):
                with pytest.raises(MCPError) as raised:
                    await failing
                assert len(raised.value.error.message) < 1000

    run(work)
