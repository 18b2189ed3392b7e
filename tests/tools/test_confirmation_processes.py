"""The gate, users and permissions over real processes: stdio and HTTP, both generations, several workers."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult

from tests.support import in_django
from tests.support.harness import DEADLINE, MODERN_META, Notes, parameters, serving_http, shared_cache

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("users")]
MODES = ["auto", "legacy"]
HANDLERS = ["stateful-sse", "stateful-json", "stateless-sse", "stateless-json"]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    anyio.run(within_the_deadline)


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("noted") / "notes")


@pytest.fixture(scope="module")
def shop(noted: Notes, users: None) -> Iterator[str]:
    with serving_http(env={**in_django.ENVIRONMENT, **noted.env}) as (_, address):
        yield address


class User:
    """Answers each question the same way, and remembers them."""

    def __init__(self, action: str = "accept") -> None:
        self.action = action
        self.questions: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        content: dict[str, Any] | None = {} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)  # type: ignore[arg-type]


@asynccontextmanager
async def connected(
    server: str | StdioServerParameters, mode: str, user: User | None = None, **headers: str
) -> AsyncIterator[Client]:
    if not isinstance(server, str):
        async with Client(server, mode=mode, elicitation_callback=user) as client:
            yield client
        return
    async with (
        httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
        Client(streamable_http_client(server, http_client=http), mode=mode, elicitation_callback=user) as client,
    ):
        yield client


async def cancel(client: Client, number: int) -> tuple[bool, str]:
    """Whether it was, and what the model is told."""
    result = await client.call_tool("cancel", {"number": number})
    return not result.is_error, result.content[0].text  # type: ignore[union-attr]


numbers = iter(range(1000, 10000))


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("mode", MODES)
def test_over_http_a_write_tool_asks_or_fails_at_once(handler: str, mode: str, shop: str, noted: Notes) -> None:
    can_ask = mode == "auto" or handler == "stateful-sse"
    accepted, declined, cancelled, unaskable = (next(numbers) for _ in range(4))

    async def work() -> None:
        for number, user in ((accepted, User()), (declined, User("decline")), (cancelled, User("cancel"))):
            async with connected(f"{shop}/{handler}", mode, user) as client:
                done, told = await cancel(client, number)
                assert done is (can_ask and user.action == "accept")
                assert user.questions == ([f"Cancel order {number}?"] if can_ask else [])
                if not can_ask:
                    assert "cannot ask a client of protocol 2025-11-25 through this handler" in told
                    assert "StreamableHTTPHandler(stateless_http=False, json_response=False)" in told
                elif not done:
                    assert "nothing was done" in told
        async with connected(f"{shop}/{handler}", mode) as client:
            done, told = await cancel(client, unaskable)
            assert not done
            assert ("elicitation capability" if can_ask else "stateless_http=False") in told

    run(work)
    ran = [note for note in noted.all() if note.split()[-1] in map(str, (accepted, declined, cancelled, unaskable))]
    assert ran == ([f"cancelled {accepted}"] if can_ask else [])


@pytest.mark.parametrize("mode", MODES)
def test_over_stdio_a_write_tool_asks(mode: str, notes: Notes) -> None:
    server = parameters(**in_django.ENVIRONMENT, **notes.env)
    accepting, declining = User(), User("decline")

    async def work() -> None:
        async with connected(server, mode, accepting) as client:
            assert await cancel(client, 7) == (True, "order 7 is cancelled")
            result = await client.call_tool("ship", {"number": 9})
            assert result.structured_content == {"result": "order 9 is shipped for AnonymousUser"}
            accepting.action = "decline"
            done, told = await cancel(client, 8)
            assert not done
            assert told.startswith("The user said no to cancel")
        async with connected(server, mode) as client:
            done, told = await cancel(client, 7)
            assert not done
            assert "elicitation capability" in told

    run(work)
    assert declining.questions == []
    assert notes.all() == ["cancelled 7", "shipped 9"]
    assert accepting.questions == ["Cancel order 7?", "Ship order 9, says AnonymousUser of 5?", "Cancel order 8?"]


# Several workers


async def ask(client: Client, number: int) -> InputRequiredResult:
    asked = await client.session.call_tool("cancel", {"number": number}, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    return asked


async def answer(client: Client, number: int, asked: InputRequiredResult) -> bool:
    result = await client.session.call_tool(
        "cancel",
        {"number": number},
        input_responses={key: ElicitResult(action="accept", content={}) for key in asked.input_requests or {}},
        request_state=asked.request_state,
    )
    return not result.is_error


def test_the_answer_may_go_to_another_worker_and_to_one_with_a_newer_secret_key(
    users: None, notes: Notes, tmp_path: Path
) -> None:
    numbers_ = [next(numbers) for _ in range(3)]
    newer = {"TEST_SECRET_KEY": "newer", "TEST_SECRET_KEY_FALLBACKS": "only for tests"}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                serving_http(env={**in_django.ENVIRONMENT, **notes.env, **shared_cache(tmp_path / "cache"), **keys})
            )[1]
            for keys in ({}, {}, newer, {"TEST_SECRET_KEY": "another"})
        ]

        async def work() -> None:
            async with (
                connected(f"{workers[0]}/stateless-json", "auto", User()) as first,
                connected(f"{workers[1]}/stateful-sse", "auto", User()) as second,
                connected(f"{workers[2]}/stateless-sse", "auto", User()) as rotated,
                connected(f"{workers[3]}/stateless-sse", "auto", User()) as stranger,
            ):
                assert await answer(second, numbers_[0], await ask(first, numbers_[0]))
                assert await answer(rotated, numbers_[1], await ask(first, numbers_[1]))
                with pytest.raises(MCPError, match="Invalid or expired requestState"):
                    await answer(stranger, numbers_[2], await ask(first, numbers_[2]))

        run(work)
    assert notes.all() == [f"cancelled {number}" for number in numbers_[:2]]


# Users


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("handler", ["stateful-sse", "stateless-json"])
def test_two_users_over_http_never_see_each_other(handler: str, mode: str, shop: str) -> None:
    seen: dict[str, set[str]] = {"ann": set(), "bob": set()}

    async def call(client: Client, name: str, tool: str) -> None:
        result = await client.call_tool(tool, {"seconds": 0.02})
        assert result.structured_content is not None
        seen[name].update(result.structured_content["result"])

    async def work() -> None:
        url = f"{shop}/{handler}"
        async with (
            connected(url, mode, **{"x-user": "ann"}) as ann,
            connected(url, mode, **{"x-user": "bob"}) as bob,
            anyio.create_task_group() as group,
        ):
            for _ in range(15):
                for tool in ("slow_who", "slow_awho"):
                    group.start_soon(call, ann, "ann", tool)
                    group.start_soon(call, bob, "bob", tool)

    run(work)
    assert seen == {"ann": {"ann"}, "bob": {"bob"}}


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_function_gets_the_user_of_the_scope(mode: str, shop: str) -> None:
    async def said(client: Client) -> list[Any]:
        results = [await client.call_tool(tool, {}) for tool in ("who", "awho", "resolved")]
        return [
            *[result.structured_content for result in results],
            *[(await client.read_resource(uri)).contents[0].text for uri in ("user://me", "user://me/tag")],  # type: ignore[union-attr]
            (await client.get_prompt("greet")).messages[0].content.text,  # type: ignore[union-attr]
        ]

    async def work() -> None:
        for name, headers in (("ann", {"x-user": "ann"}), ("AnonymousUser", {})):
            user = User()
            async with connected(f"{shop}/stateful-sse", mode, user, **headers) as client:
                assert await said(client) == [
                    {"result": name},
                    {"result": name},
                    {"result": f"{name} {name}"},
                    name,
                    f"{name} tag",
                    f"Greet {name}.",
                ]
                await client.call_tool("refund", {"number": 7})
                assert user.questions == [f"Refund order 7, says {name} of 5?"]

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_the_user_of_a_django_session_is_the_user_of_the_call(mode: str, shop: str) -> None:
    from django.test import Client as Browser

    browser = Browser()
    browser.force_login(in_django.user("clerk"))
    cookie = f"sessionid={browser.cookies['sessionid'].value}"

    async def work() -> None:
        for headers, name in (({"cookie": cookie}, "clerk"), ({}, "AnonymousUser")):
            async with connected(f"{shop}/session", mode, **headers) as client:
                assert (await client.call_tool("awho", {})).structured_content == {"result": name}
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert ("one" in names) is (name == "clerk")

    run(work)


# What is hidden, byte by byte


def post(url: str, name: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
    accept = {"accept": "application/json, text/event-stream"}
    return httpx2.post(url, json=body, headers={**accept, "x-user": name, **headers}, timeout=DEADLINE)


def modern(url: str, user: str, method: str, about: str, **params: Any) -> httpx2.Response:
    """A request of 2026-07-28 about ``about``, a name or a URI."""
    key = "uri" if method == "resources/read" else "name"
    headers = {name.replace("_", "-"): params.pop(name) for name in [*params] if name.startswith("mcp_param")}
    headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": about}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {key: about, "_meta": MODERN_META, **params}}
    return post(url, user, body, **headers)


def legacy(url: str, user: str, method: str, about: str, **params: Any) -> httpx2.Response:
    """The same, of 2025-11-25 and without a session."""
    key = "uri" if method == "resources/read" else "name"
    params = {name: value for name, value in params.items() if not name.startswith("mcp_param")}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {key: about, **params}}
    return post(url, user, body, **{"mcp-protocol-version": "2025-11-25"})


HIDDEN: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "tool": ("tools/call", "one", "0ne", {"arguments": {}}),
    "tool with wrong arguments": ("tools/call", "one", "0ne", {"arguments": {"text": 7}}),
    "gated tool": ("tools/call", "delete", "de1ete", {"arguments": {"name": "x"}}),
    "tool with a header": ("tools/call", "regional", "regi0nal", {"arguments": {"region": "x"}}),
    "tool with a wrong header": (
        "tools/call",
        "regional",
        "regi0nal",
        {"arguments": {"region": "x"}, "mcp_param_region": "y"},
    ),
    "resource": ("resources/read", "secret://one", "secret://0ne", {}),
    "template": ("resources/read", "secret://number/7", "secret://numb3r/7", {}),
    "template with a wrong argument": ("resources/read", "secret://number/x", "secret://numb3r/x", {}),
    "prompt": ("prompts/get", "secret_prompt", "s3cret_prompt", {"arguments": {"number": "7"}}),
    "prompt without its arguments": ("prompts/get", "secret_prompt", "s3cret_prompt", {}),
}


@pytest.mark.parametrize("request_of", [modern, legacy], ids=["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize(("method", "hidden", "unknown", "params"), HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("user", ["ann", "gone"])
def test_a_hidden_tool_is_answered_like_a_missing_tool(
    user: str, method: str, hidden: str, unknown: str, params: dict[str, Any], request_of: Any, shop: str
) -> None:
    answers = [request_of(f"{shop}/stateless-json", user, method, about, **params) for about in (hidden, unknown)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].content.replace(hidden.encode(), unknown.encode()) == answers[1].content
    kept = [{k: v for k, v in each.headers.items() if k not in ("date",)} for each in answers]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("user", "tool"), [("clerk", "regional"), ("ann", "open_regional")])
def test_a_wrong_param_header_is_refused_for_a_user_who_may_use_the_tool(user: str, tool: str, shop: str) -> None:
    url = f"{shop}/stateless-json"
    arguments = {"arguments": {"region": "x"}}
    for headers in ({}, {"mcp_param_region": "y"}):
        wrong = modern(url, user, "tools/call", tool, **arguments, **headers)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32020)
    right = modern(url, user, "tools/call", tool, **arguments, mcp_param_region="x")
    assert right.json()["result"]["structuredContent"] == {"result": "x"}
