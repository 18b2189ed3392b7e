"""Sync functions in their threads: what they may return, raise and call."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Annotated, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from mcp import Client
from mcp.server.mcpserver import Context, Resolve
from mcp_types import ElicitResult

from tests.support import in_django
from tests.support.harness import DEADLINE

from mcp_serving import MCPServer, current_request  # isort: skip - after Django is set up
from mcp_serving.testing import Answers, client  # isort: skip
from mcp_serving.threads import async_orm_thread  # isort: skip

assert in_django

server = MCPServer("threads", max_threads=2)


async def question_without_a_thread() -> str:
    return "Really?"


ran: list[str] = []


async def no(user: Any) -> bool:
    return False


def crash(user: Any) -> bool:
    raise ValueError("a secret of the server")


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, user: Any) -> bool:
        return False


@server.tool(permission=lambda user: no(user))
def refused_by_a_coroutine() -> str:
    return "never"


@server.tool(permission=crash)
def refused_by_a_crash() -> str:
    return "never"


@server.tool(permission=Unhashable())
def refused_by_the_unhashable() -> str:
    return "never"


@server.tool()
def stops() -> str:
    empty: list[str] = []
    return next(iter(empty))


@server.tool()
def inner() -> str:
    return "inner"


@server.tool()
def outer(ctx: Context) -> str:
    time.sleep(0.1)  # so that each of those called at once has its thread
    result: Any = async_to_sync(server.call_tool)("inner", {}, ctx)
    return f"outer of {result.structured_content['result']}"


class Half:
    """A resolver that cannot be hashed: it has an __eq__ of its own."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Half)

    def __call__(self, number: int) -> int:
        return number // 2


half = Half()


@server.tool()
def halved(number: int, one: Annotated[int, Resolve(half)], two: Annotated[int, Resolve(half)]) -> int:
    return one + two


blocked, free = threading.Semaphore(0), threading.Event()


@server.tool()
def blocks() -> str:
    blocked.release()
    assert free.wait(DEADLINE)
    return "free"


@server.tool(permission="auth.view_user")
async def permitted() -> str:
    return "permitted"


@server.write_tool(confirm=question_without_a_thread)
async def asks() -> str:
    return "asked"


async def question(number: int) -> str:
    return f"Really {number}?"


async def work(number: int) -> str:
    ran.append(f"ran {number}")
    return f"done {number}"


@server.write_tool(confirm=lambda number: question(number))
def sync_around_async(number: int) -> Any:
    return work(number)


def run(talk: Coroutine[Any, Any, None]) -> None:
    async def within_the_deadline() -> None:
        async with asyncio.timeout(DEADLINE):
            await talk

    asyncio.run(within_the_deadline())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_permission_that_raises_or_returns_an_odd_value_is_refused(mode: Any) -> None:
    async def talk() -> None:
        async with client(server, mode=mode) as session:
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert "inner" in names
            for refused in ("refused_by_a_coroutine", "refused_by_a_crash", "refused_by_the_unhashable"):
                assert refused not in names
                answer = await session.call_tool(refused, {})
                assert answer.content[0].text == f"Unknown tool: {refused}"  # type: ignore[union-attr]

    run(talk())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_awaitable_that_a_sync_function_returns_is_awaited(mode: Any) -> None:
    answers = Answers(True)
    ran.clear()

    async def talk() -> None:
        async with client(server, mode=mode, answers=answers) as session:
            answer = await session.call_tool("sync_around_async", {"number": 7})
            assert answer.content[0].text == "done 7"  # type: ignore[union-attr]

    run(talk())
    assert answers.questions == ["Really 7?"]
    assert ran == ["ran 7"]


def test_a_function_that_raises_stop_iteration_fails_instead_of_waiting_for_ever() -> None:
    async def talk() -> None:
        async with Client(server) as session:
            assert (await session.call_tool("stops", {})).is_error

    run(talk())


def test_sync_functions_that_call_sync_functions_need_no_further_thread() -> None:
    async def talk() -> None:
        async with Client(server) as session:
            answers = await asyncio.gather(*(session.call_tool("outer", {}) for _ in range(6)))
            assert {answer.structured_content["result"] for answer in answers} == {"outer of inner"}  # type: ignore[index]

    run(talk())


def test_a_resolver_need_not_be_hashable() -> None:
    async def talk() -> None:
        async with Client(server) as session:
            answer = await session.call_tool("halved", {"number": 7})
            assert answer.structured_content == {"result": 6}

    run(talk())


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_while_all_threads_are_busy_async_tools_are_listed_and_called_and_confirmed(mode: Any) -> None:
    free.clear()
    clerk = in_django.user("clerk")

    async def accept(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={})

    async def talk() -> None:
        async with Client(server, mode=mode, elicitation_callback=accept) as session, asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(session.call_tool("blocks", {}))
                await asyncio.to_thread(blocked.acquire, timeout=DEADLINE)
            try:
                assert "permitted" in {tool.name for tool in (await session.list_tools()).tools}
                for name, said in (("permitted", "permitted"), ("asks", "asked")):
                    answer = await session.call_tool(name, {})
                    assert answer.content[0].text == said  # type: ignore[union-attr]
            finally:
                free.set()

    with current_request.updated(local_user=clerk):
        run(talk())


async def orm_threads() -> list[int]:
    """The threads of the async ORM: in a call, in its task, in a nested call, and in the outer call again."""
    in_call = sync_to_async(threading.get_ident)
    threads_used = [await in_call(), await asyncio.create_task(in_call())]
    with async_orm_thread():
        threads_used.append(await in_call())
    return [*threads_used, await in_call()]


@pytest.mark.parametrize("through_sync_code", [False, True])
def test_the_async_orm_of_each_call_has_its_own_thread(through_sync_code: bool) -> None:
    async def call(both_have_used_theirs: asyncio.Barrier) -> list[int]:
        before = await sync_to_async(threading.get_ident)()
        with async_orm_thread():
            used = await orm_threads()
            await both_have_used_theirs.wait()  # a new thread may get the number of a thread that has ended
        assert await sync_to_async(threading.get_ident)() == before
        return used

    async def calls() -> list[list[int]]:
        barrier = asyncio.Barrier(2)
        return await asyncio.gather(call(barrier), call(barrier))

    one, other = async_to_sync(calls)() if through_sync_code else asyncio.run(calls())
    assert one[0] == one[1] == one[3]
    assert other[0] == other[1] == other[3]
    assert len({one[0], other[0], threading.get_ident()}) == 3
    assert one[2] != one[0]
    assert other[2] != other[0]


def test_a_task_that_outlives_its_call_cannot_use_the_async_orm() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def later() -> int:
            await ended.wait()
            return await sync_to_async(threading.get_ident)()

        with async_orm_thread():
            task = asyncio.create_task(later())
        ended.set()
        with pytest.raises(RuntimeError, match="after the end of its call"):
            await task

    asyncio.run(run())
