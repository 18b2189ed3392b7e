"""Write tools in this process: what they ask, which answers count, and that nothing runs without one."""

import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from mcp import Client
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult, TextContent
from pydantic import BaseModel, Field

from tests.support import in_django
from tests.support.harness import DEADLINE

from django.contrib.auth.models import Permission, User  # isort: skip - after Django is set up
from django.core.cache import cache  # isort: skip
from django.test import override_settings  # isort: skip

from mcp_serving import MCPServer
from mcp_serving.errors import NoElicitation
from mcp_serving.testing import Answers, client
from mcp_serving.tools import request_state

pytestmark = pytest.mark.usefixtures("users")
MODES = ["auto", "legacy"]


class Shop:
    """A server whose write tool counts how often it ran."""

    def __init__(self, name: str = "shop", confirm: Any = "Cancel order {number}?") -> None:
        self.server = MCPServer(name)
        self.ran: list[int] = []
        self.server.write_tool(confirm=confirm)(self.cancel)
        self.server.write_tool("archive", confirm="Archive order {number}?")(self.cancel)

    def cancel(self, number: Annotated[int, Field(ge=1)], note: str = "") -> str:
        self.ran.append(number)
        return f"order {number} is cancelled"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


def text(result: CallToolResult) -> str:
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


async def ask(session: Client, tool: str = "cancel", **arguments: Any) -> InputRequiredResult:
    """The first round trip of a call."""
    asked = await session.session.call_tool(tool, arguments or {"number": 7}, allow_input_required=True)
    assert isinstance(asked, InputRequiredResult)
    return asked


async def answer(
    session: Client, asked: InputRequiredResult, tool: str = "cancel", action: str = "accept", **arguments: Any
) -> CallToolResult:
    """The second round trip."""
    assert asked.input_requests is not None
    reply = ElicitResult(action=action, content={} if action == "accept" else None)  # type: ignore[arg-type]
    result = await session.session.call_tool(
        tool,
        arguments or {"number": 7},
        input_responses=dict.fromkeys(asked.input_requests, reply),
        request_state=asked.request_state,
    )
    assert isinstance(result, CallToolResult)
    return result


@pytest.mark.parametrize("mode", MODES)
def test_on_accept_the_tool_runs_once_and_its_result_comes_back(mode: Any, shop: Shop) -> None:
    answers = Answers(True)

    async def work() -> None:
        async with client(shop.server, answers=answers, mode=mode) as session:
            result = await session.call_tool("cancel", {"number": 7})
            assert result.structured_content == {"result": "order 7 is cancelled"}

    run(work)
    assert shop.ran == [7]
    assert answers.questions == ["Cancel order 7?"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("reply", "word"), [(False, "The user said no to cancel"), (None, "The user closed")])
def test_on_decline_and_cancel_it_does_not_run_and_the_model_is_told(
    reply: bool | None, word: str, mode: Any, shop: Shop
) -> None:
    async def work() -> None:
        async with client(shop.server, answers=[reply], mode=mode) as session:
            result = await session.call_tool("cancel", {"number": 7})
            assert result.is_error
            assert text(result).startswith(word)
            assert "nothing was done" in text(result)

    run(work)
    assert shop.ran == []


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_cannot_ask_is_told_at_once(mode: Any, shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, mode=mode) as session:
            result = await session.call_tool("cancel", {"number": 7})
            assert result.is_error
            assert "does not declare the elicitation capability" in text(result)

    run(work)
    assert shop.ran == []


def test_outside_of_a_request_a_write_tool_fails_because_it_cannot_ask(shop: Shop) -> None:
    with pytest.raises(ToolError, match="there is no client that could ask") as raised:
        anyio.run(shop.server.call_tool, "cancel", {"number": 7})
    assert isinstance(raised.value.__cause__, NoElicitation)
    assert shop.ran == []


@pytest.mark.parametrize("mode", MODES)
def test_arguments_are_validated_before_the_user_is_asked(mode: Any, shop: Shop) -> None:
    answers = Answers()

    async def work() -> None:
        async with client(shop.server, answers=answers, mode=mode) as session:
            for wrong in ({"number": 0}, {"number": "seven"}, {}):
                result = await session.call_tool("cancel", wrong)
                assert result.is_error
                assert "Error executing tool cancel" in text(result)

    run(work)
    assert answers.questions == []


def test_clients_see_only_the_arguments_of_the_function(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server) as session:
            tool = next(tool for tool in (await session.list_tools()).tools if tool.name == "cancel")
            assert list(tool.input_schema["properties"]) == ["number", "note"]
            assert tool.annotations is not None
            assert tool.annotations.destructive_hint is True
            assert tool.annotations.idempotent_hint is False
            assert tool.annotations.read_only_hint is False

    run(work)


# What counts as an answer


def test_an_answer_counts_once_however_often_the_client_sends_it(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            first = await answer(session, asked)
            assert not first.is_error
            for _ in range(3):
                again = await answer(session, asked)
                assert again.is_error
                assert "was answered before" in text(again)

    run(work)
    assert shop.ran == [7]


def test_with_a_confirm_that_calls_another_server_an_answer_counts_once() -> None:
    """The client of that server runs its request in the very task of the question."""
    other, shop, ran = MCPServer("other"), MCPServer("shop"), list[int]()

    @other.tool()
    async def price() -> int:
        return 5

    async def confirm(number: int) -> str:
        async with client(other) as session:
            cost = (await session.call_tool("price", {})).structured_content
        return f"Buy {number} for {cost}?"

    @shop.write_tool(confirm=confirm)
    async def buy(number: int) -> str:
        ran.append(number)
        return "bought"

    async def work() -> None:
        async with client(shop, answers=Answers()) as session:
            asked = await ask(session, "buy", number=7)
            assert text(await answer(session, asked, "buy", number=7)) == "bought"
            assert "was answered before" in text(await answer(session, asked, "buy", number=7))

    run(work)
    assert ran == [7]


def test_of_several_answers_at_once_one_counts(shop: Shop) -> None:
    results: list[CallToolResult] = []

    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)

            async def race() -> None:
                results.append(await answer(session, asked))

            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(race)

    run(work)
    assert shop.ran == [7]
    assert sorted(result.is_error or False for result in results) == [False] + [True] * 9


IN_FILES = "django.core.cache.backends.filebased.FileBasedCache"


@pytest.fixture
def shared_cache(tmp_path: Path) -> Iterator[None]:
    """Django's default cache in files, as several workers share it."""
    with override_settings(CACHES={"default": {"BACKEND": IN_FILES, "LOCATION": str(tmp_path)}}):
        yield


def test_after_a_restart_an_answer_is_refused_if_the_cache_is_in_memory(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            assert not (await answer(session, asked)).is_error
            open_question = await ask(session)
            request_state._open.clear()  # as in the memory of another process
            for each in (asked, open_question):
                assert "the server no longer knows it" in text(await answer(session, each))

    run(work)
    assert shop.ran == [7]


@pytest.mark.usefixtures("shared_cache")
def test_an_answer_is_refused_after_its_question_was_evicted_from_a_shared_cache(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            used = await ask(session)
            assert not (await answer(session, used)).is_error
            for number in range(400):  # more than the 300 that the cache keeps
                await cache.aset(f"other-{number}", True)
            assert (await answer(session, used)).is_error
            await cache.aclear()
            assert (await answer(session, used)).is_error

    run(work)
    assert shop.ran == [7]


@pytest.mark.usefixtures("shared_cache")
def test_workers_with_a_shared_cache_take_an_answer_once_whichever_of_them_gets_it(shop: Shop) -> None:
    other = Shop()

    async def work() -> None:
        async with (
            client(shop.server, answers=Answers()) as one,
            client(other.server, answers=Answers()) as two,
        ):
            asked = await ask(one)
            request_state._open.clear()  # as in the memory of another process
            assert not (await answer(two, asked)).is_error
            assert (await answer(one, asked)).is_error

    run(work)
    assert (shop.ran, other.ran) == ([], [7])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [{}, None], ids=["empty content", "no content"])
def test_an_accepted_question_needs_no_content(mode: Any, content: Any, shop: Shop) -> None:
    async def accept(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=content)

    async def work() -> None:
        async with client(shop.server, mode=mode, elicitation_callback=accept) as session:
            assert not (await session.call_tool("cancel", {"number": 7})).is_error

    run(work)
    assert shop.ran == [7]


@pytest.mark.parametrize("lost", ["permission", "activity", "user"])
def test_a_user_who_loses_access_while_the_question_waits_does_not_run_the_tool(lost: str) -> None:
    """A client up to 2025-11-25 answers within the request that asked."""
    server = MCPServer("shop")
    ran: list[int] = []
    clerk = User.objects.create_user("waiting")
    clerk.user_permissions.add(Permission.objects.get(codename="view_user"))

    @server.write_tool(confirm="Cancel?", permission="auth.view_user" if lost == "permission" else None)
    def cancel() -> str:
        ran.append(1)
        return "cancelled"

    async def revoke(context: Any, params: Any) -> ElicitResult:
        if lost == "permission":
            await clerk.user_permissions.aclear()
        elif lost == "activity":
            await User.objects.filter(pk=clerk.pk).aupdate(is_active=False)
        else:
            await User.objects.filter(pk=clerk.pk).adelete()
        return ElicitResult(action="accept", content={})

    async def work() -> None:
        # As over HTTP: the user is an object of this request, which has its permissions cached.
        async with client(server, user=clerk, mode="legacy", elicitation_callback=revoke) as session:
            result = await session.call_tool("cancel", {})
            assert result.is_error
            assert "Unknown tool: cancel" in text(result)

    try:
        run(work)
    finally:
        User.objects.filter(username="waiting").delete()
    assert ran == []


def test_after_a_no_a_yes_to_the_same_question_is_refused(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            assert "said no" in text(await answer(session, asked, action="decline"))
            assert "was answered before" in text(await answer(session, asked))

    run(work)
    assert shop.ran == []


REFUSED = {
    "another tool": {"tool": "archive"},
    "other arguments": {"number": 8},
    "more arguments": {"number": 7, "note": "x"},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_the_answer_to_one_call_is_refused_in_another_call(change: dict[str, Any], shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await answer(session, asked, **change)

    run(work)
    assert shop.ran == []


@pytest.mark.parametrize(("asked_as", "answered_as"), [("ann", "bob"), ("ann", None), (None, "ann"), ("ann", "root")])
def test_the_answer_of_another_user_is_refused(asked_as: str | None, answered_as: str | None, shop: Shop) -> None:
    users = {name: in_django.user(name) for name in ("ann", "bob", "root")}

    async def work() -> None:
        async with (
            client(shop.server, user=users.get(asked_as or ""), answers=Answers()) as one,
            client(shop.server, user=users.get(answered_as or ""), answers=Answers()) as two,
        ):
            asked = await ask(one)
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await answer(two, asked)
            assert not (await answer(one, asked)).is_error

    run(work)
    assert shop.ran == [7]


def test_a_changed_state_is_refused_and_so_is_an_answer_without_one(shop: Shop) -> None:
    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            assert asked.request_state is not None
            state = asked.request_state
            other = "B" if state[20] == "A" else "A"
            for changed in (state[:-4] + "AAAA", state[:20] + other + state[21:], "v1.AAAA", "nonsense"):
                with pytest.raises(MCPError, match="Invalid or expired requestState"):
                    await answer(session, asked.model_copy(update={"request_state": changed}))
            unasked = await session.session.call_tool(
                "cancel",
                {"number": 7},
                input_responses={key: ElicitResult(action="accept", content={}) for key in asked.input_requests or {}},
                allow_input_required=True,
            )
            assert isinstance(unasked, InputRequiredResult)

    run(work)
    assert shop.ran == []


def test_an_answer_later_than_ten_minutes_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time

    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            in_time, late = await ask(session), await ask(session)
            monkeypatch.setattr(time, "time", lambda: now() + 590)
            assert not (await answer(session, in_time)).is_error
            monkeypatch.setattr(time, "time", lambda: now() + 610)
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await answer(session, late)

    run(work)
    assert shop.ran == [7]


def test_a_client_up_to_2025_11_25_has_ten_minutes_to_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    minutes = 9.0

    async def takes_its_time(context: Any, params: Any) -> ElicitResult:
        monkeypatch.setattr(time, "time", lambda later=minutes * 60: now() + later)
        return ElicitResult(action="accept", content={})

    async def work() -> None:
        nonlocal minutes
        async with client(shop.server, mode="legacy", elicitation_callback=takes_its_time) as session:
            assert not (await session.call_tool("cancel", {"number": 7})).is_error
            minutes = 9 + 11
            result = await session.call_tool("cancel", {"number": 8})
            assert "The user took more than 10 minutes to answer: cancel did nothing." in text(result)

    run(work)
    assert shop.ran == [7]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_counts_for_the_arguments_that_one_tool_passes_to_another(mode: Any) -> None:
    """The client sees the outer tool's arguments alone, and the user a question that speaks of none."""
    server = MCPServer("nested")
    amounts = iter([1, 1000])
    ran: list[int] = []

    @server.write_tool(confirm="Refund the order?")
    def refund(amount: int) -> str:
        ran.append(amount)
        return f"refunded {amount}"

    @server.tool(structured_output=False)
    async def settle(ctx: Context) -> Any:
        return await server.call_tool("refund", {"amount": next(amounts)}, ctx)

    async def work() -> None:
        async with client(server, answers=[True], mode=mode) as session:
            result = await session.call_tool("settle")
            if mode == "legacy":  # one call, which asks and goes on
                assert text(result) == "refunded 1"
            else:  # the second round runs the outer tool again
                assert result.is_error
                assert "asked about other arguments of refund than it is called with now: nothing was done" in text(
                    result
                )

    run(work)
    assert ran == ([1] if mode == "legacy" else [])


def test_open_questions_are_forgotten_when_they_have_expired(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    request_state._open.clear()

    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            for round_trips in range(3):
                monkeypatch.setattr(time, "time", lambda later=round_trips * 700: now() + later)
                await ask(session)
                assert len(request_state._open) == 1

    run(work)


class Reason(BaseModel):
    reason: str


class TwoQuestions:
    """A tool with a question of its own, asked once the first is answered."""

    def __init__(self) -> None:
        self.server = MCPServer("two-questions")
        self.ran: list[str] = []

        async def first() -> Elicit[Reason]:
            return Elicit("First reason?", Reason)

        async def second(reason: Annotated[Reason, Resolve(first)]) -> Elicit[Reason]:
            return Elicit(f"And after {reason.reason!r}?", Reason)

        @self.server.write_tool(confirm="Cancel {number}?")
        def cancel(number: int, reason: Annotated[Reason, Resolve(second)]) -> str:
            self.ran.append(reason.reason)
            return reason.reason


@pytest.mark.parametrize("mode", MODES)
def test_a_write_tool_may_have_resolvers_that_ask(mode: Any) -> None:
    tool = TwoQuestions()
    in_legacy_order = [{"reason": "a"}, {"reason": "b"}, True]
    in_modern_order = [{"reason": "a"}, True, {"reason": "b"}]
    answers = Answers(*(in_legacy_order if mode == "legacy" else in_modern_order))  # type: ignore[arg-type]

    async def work() -> None:
        async with client(tool.server, answers=answers, mode=mode) as session:
            assert text(await session.call_tool("cancel", {"number": 7})) == "b"

    run(work)
    assert tool.ran == ["b"]
    assert set(answers.questions) == {"First reason?", "And after 'a'?", "Cancel 7?"}


def replies(asked: InputRequiredResult) -> dict[str, Any]:
    return {
        key: ElicitResult(action="accept", content={} if "confirm cancel" in key else {"reason": "x"})
        for key in asked.input_requests or {}
    }


async def go_on(session: Client, asked: InputRequiredResult) -> Any:
    """One round trip more, with an answer to each question."""
    return await session.session.call_tool(
        "cancel",
        {"number": 7},
        input_responses=replies(asked),
        request_state=asked.request_state,
        allow_input_required=True,
    )


def test_in_a_call_of_several_round_trips_a_yes_counts_once() -> None:
    tool = TwoQuestions()

    async def work() -> None:
        async with client(tool.server, answers=Answers()) as session:
            asked = await ask(session)
            # One answer, and two further round trips made of it.
            one, two = [await go_on(session, asked) for _ in range(2)]
            assert not (await go_on(session, one)).is_error
            assert "was answered before" in text(await go_on(session, two))

    run(work)
    assert tool.ran == ["x"]


def test_further_round_trips_do_not_extend_the_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = TwoQuestions()
    now = time.time

    async def work() -> None:
        async with client(tool.server, answers=Answers()) as session:
            asked = await ask(session)
            monkeypatch.setattr(time, "time", lambda: now() + 500)
            again = await go_on(session, asked)
            monkeypatch.setattr(time, "time", lambda: now() + 610)
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await go_on(session, again)

    run(work)
    assert tool.ran == []


# The question


def test_an_argument_is_a_value_in_the_question_and_never_a_format() -> None:
    shop = Shop(confirm="Cancel order {number} because of {note}?")
    nasty = "{number.__class__} {0} {note.__init__.__globals__} %s {"
    answers = Answers(True)

    async def work() -> None:
        async with client(shop.server, answers=answers) as session:
            assert not (await session.call_tool("cancel", {"number": 7, "note": nasty})).is_error

    run(work)
    assert answers.questions == [f"Cancel order 7 because of {nasty}?"]


def question_by_function(number: int) -> str:
    from django.contrib.auth.models import User

    return f"{User.objects.filter(username='ann').count()} ann, order {number}?"


async def question_by_coroutine(number: int, *, stars: int = 1) -> str:
    from django.contrib.auth.models import User

    return f"{await User.objects.filter(username='ann').acount()} ann, order {number}?"


QUESTIONS = {
    "format": ("1 ann, order {number}?", "1 ann, order 7?"),
    "with a width": ("1 ann, order {number:>{number}}?", "1 ann, order       7?"),
    "function": (question_by_function, "1 ann, order 7?"),
    "coroutine": (question_by_coroutine, "1 ann, order 7?"),
    "all arguments": (lambda **arguments: f"{arguments}", "{'number': 7, 'note': ''}"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("confirm", "question"), QUESTIONS.values(), ids=QUESTIONS)
def test_the_question_is_a_format_string_or_a_callable(confirm: Any, question: str, mode: Any) -> None:
    shop = Shop(confirm=confirm)
    answers = Answers(True)

    async def work() -> None:
        async with client(shop.server, answers=answers, mode=mode) as session:
            assert not (await session.call_tool("cancel", {"number": 7})).is_error

    run(work)
    assert answers.questions == [question]
    assert shop.ran == [7]


def test_a_question_whose_text_has_changed_is_asked_again() -> None:
    state = ["open"]
    shop = Shop(confirm=lambda number: f"Cancel order {number}, which is {state[0]}?")

    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            asked = await ask(session)
            state[0] = "shipped"
            again = await session.session.call_tool(
                "cancel",
                {"number": 7},
                input_responses={key: ElicitResult(action="accept", content={}) for key in asked.input_requests or {}},
                request_state=asked.request_state,
                allow_input_required=True,
            )
            assert isinstance(again, InputRequiredResult)
            assert shop.ran == []
            assert not (await answer(session, again)).is_error

    run(work)
    assert shop.ran == [7]


@pytest.mark.parametrize("mode", MODES)
def test_a_confirm_that_raises_a_tool_error_ends_the_call_without_a_question(mode: Any) -> None:
    def confirm(number: int) -> str:
        raise ToolError(f"There is no order {number}.")

    shop = Shop(confirm=confirm)
    answers = Answers()

    async def work() -> None:
        async with client(shop.server, answers=answers, mode=mode) as session:
            assert "There is no order 7." in text(await session.call_tool("cancel", {"number": 7}))

    run(work)
    assert (shop.ran, answers.questions) == ([], [])


def test_an_empty_question_is_not_asked() -> None:
    shop = Shop(confirm=lambda: None)

    async def work() -> None:
        async with client(shop.server, answers=Answers()) as session:
            assert (await session.call_tool("cancel", {"number": 7})).is_error

    run(work)
    assert shop.ran == []


WRONG_QUESTIONS = {
    "unknown argument": ("Cancel {order}?", ValueError, "'cancel' uses 'order', but the tool's arguments are 'number'"),
    "positional": ("Cancel {}?", ValueError, "uses ''"),
    "nested": ("Cancel {number:{width}}?", ValueError, "uses 'width'"),
    "no format": ("Cancel {number?", ValueError, "question of tool 'cancel' is not a format string"),
    "unknown to a callable": (lambda order: "", ValueError, "uses 'order'"),
    "neither": (True, TypeError, "question of tool 'cancel' is True"),
}


@pytest.mark.parametrize(("confirm", "error", "message"), WRONG_QUESTIONS.values(), ids=WRONG_QUESTIONS)
def test_an_invalid_question_is_an_error_at_the_decorator(confirm: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Shop(confirm=confirm)


def with_an_alias(number: Annotated[int, Field(alias="orderNumber")]) -> str: ...
def with_a_default_alias(number: int = Field(alias="orderNumber")) -> str: ...
def positional_only(number: int, /) -> str: ...
def variadic(*numbers: int) -> str: ...
def any_keyword(**numbers: int) -> str: ...
def reserved(can_ask_: int) -> str: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (with_an_alias, "Argument 'number' of write tool 'with_an_alias' has the alias 'orderNumber'"),
        (with_a_default_alias, "Argument 'number' of write tool 'with_a_default_alias' has the alias 'orderNumber'"),
        (positional_only, "Write tool 'positional_only' has the parameter 'number: int', which is positional-only"),
        (variadic, r"Write tool 'variadic' has the parameter '\*numbers: int', which is variadic positional"),
        (any_keyword, r"Write tool 'any_keyword' has the parameter '\*\*numbers: int', which is variadic keyword"),
        (reserved, "Write tool 'reserved' has the argument 'can_ask_', a reserved name: rename the argument"),
    ],
)
def test_an_argument_that_a_write_tool_cannot_have_is_an_error_at_the_decorator(
    function: Callable[..., str], told: str
) -> None:
    server = MCPServer("server")
    with pytest.raises(ValueError, match=told):
        server.write_tool(confirm="?")(function)
    assert anyio.run(server.list_tools) == []


def test_if_the_client_cannot_ask_the_resolvers_of_the_tool_do_not_run() -> None:
    server = MCPServer("server")
    ran: list[str] = []

    def look_up() -> str:
        ran.append("resolver")
        return "found"

    @server.write_tool(confirm="Cancel {number}?")
    def cancel(number: int, found: Annotated[str, Resolve(look_up)]) -> str:
        return found

    async def work() -> None:
        async with client(server) as session:
            assert (await session.call_tool("cancel", {"number": 7})).is_error

    run(work)
    assert ran == []


def test_the_question_may_use_the_result_of_a_resolver() -> None:
    server = MCPServer("server")

    def find(number: int) -> dict[str, str]:
        return {"customer": f"customer {number}"}

    @server.write_tool(confirm="Cancel the order of {order[customer]}?")
    async def cancel(number: int, order: Annotated[dict[str, str], Resolve(find)], ctx: Context) -> str:
        assert ctx.protocol_version
        return order["customer"]

    answers = Answers(True, True)

    async def work() -> None:
        for mode in MODES:
            async with client(server, answers=answers, mode=mode) as session:  # type: ignore[arg-type]
                assert text(await session.call_tool("cancel", {"number": 7})) == "customer 7"

    run(work)
    assert answers.questions == ["Cancel the order of customer 7?"] * 2
