"""Who calls and what they may, in this process; and the client for tests, which brings users along."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from mcp import Client
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import Completion, CompletionArgument, PromptReference, ResourceTemplateReference

from tests.support import in_django
from tests.support.harness import DEADLINE

from django.contrib.auth.base_user import AbstractBaseUser  # isort: skip - after Django is set up
from django.contrib.auth.models import Permission, User  # isort: skip
from django.test import TestCase  # isort: skip

from mcp_serving.testing import Answers, client  # isort: skip
from mcp_serving import MCPServer, get_user  # isort: skip
from tests.project.shop import server  # isort: skip

pytestmark = pytest.mark.usefixtures("users")
MODES = ["auto", "legacy"]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


async def result_of(session: Client, tool: str, **arguments: Any) -> Any:
    result = await session.call_tool(tool, arguments)
    assert not result.is_error, result
    assert result.structured_content is not None
    return result.structured_content["result"]


async def everything_about(session: Client) -> list[str]:
    """Who each kind of handler thinks is calling."""
    return [
        await result_of(session, "who"),
        await result_of(session, "awho"),
        await result_of(session, "resolved"),
        (await session.read_resource("user://me")).contents[0].text,  # type: ignore[union-attr]
        (await session.read_resource("user://me/tag")).contents[0].text,  # type: ignore[union-attr]
        (await session.get_prompt("greet")).messages[0].content.text,  # type: ignore[union-attr]
        await result_of(session, "ship", number=7),
    ]


def expected(name: str) -> list[str]:
    return [
        name,
        name,
        f"{name} {name}",
        name,
        f"{name} tag",
        f"Greet {name}.",
        f"order 7 is shipped for {name}",
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ann", "AnonymousUser"])
def test_every_kind_of_function_gets_the_user(name: str, mode: Any) -> None:
    user = in_django.user(name) if name == "ann" else None
    answers = Answers(True, True)

    async def work() -> None:
        async with client(server, user=user, answers=answers, mode=mode) as session:
            assert await everything_about(session) == expected(name)
            await session.call_tool("refund", {"number": 8})

    run(work)
    assert answers.questions == [f"Ship order 7, says {name} of 5?", f"Refund order 8, says {name} of 5?"]


@pytest.mark.parametrize("mode", MODES)
def test_two_users_in_many_calls_at_once_never_see_each_other(mode: Any) -> None:
    users = {name: in_django.user(name) for name in ("ann", "bob")}
    seen: dict[str, set[str]] = {name: set() for name in users}

    async def ask(session: Client, name: str, tool: str) -> None:
        seen[name].update(await result_of(session, tool, seconds=0.01))

    async def work() -> None:
        async with (
            client(server, user=users["ann"], mode=mode) as ann,
            client(server, user=users["bob"], mode=mode) as bob,
            anyio.create_task_group() as group,
        ):
            for _ in range(20):
                for tool in ("slow_who", "slow_awho"):
                    group.start_soon(ask, ann, "ann", tool)
                    group.start_soon(ask, bob, "bob", tool)

    run(work)
    assert seen == {"ann": {"ann"}, "bob": {"bob"}}


def test_outside_of_a_request_the_user_is_anonymous() -> None:
    assert get_user().is_anonymous


# Permissions

OPEN_TOOLS = ["cancel", "refund", "ship", "who", "awho", "resolved", "slow_who", "slow_awho", "open_regional"]
FOR_CLERKS = {"one", "by_function", "regional", "delete"}
MAY_USE = {
    None: set[str](),
    "ann": {"by_coroutine"},
    "clerk": {*FOR_CLERKS, "by_coroutine"},
    "gone": set[str](),
    "root": {"one", "several", "by_coroutine", "regional", "delete"},
}
ALL_HIDDEN = {*FOR_CLERKS, "several", "by_coroutine"}
ARGUMENTS = {"regional": {"region": "x"}, "delete": {"name": "x"}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "may_use"), MAY_USE.items(), ids=map(str, MAY_USE))
def test_a_tool_exists_only_for_users_with_the_permission(name: str | None, may_use: set[str], mode: Any) -> None:
    user = in_django.user(name) if name else None

    async def work() -> None:
        async with client(server, user=user, answers=Answers(True), mode=mode) as session:
            listed = {tool.name for tool in (await session.list_tools()).tools}
            assert listed == {*OPEN_TOOLS, *may_use}
            for tool in ALL_HIDDEN:
                result = await session.call_tool(tool, ARGUMENTS.get(tool, {}))
                unknown = await session.call_tool(f"no_{tool}", ARGUMENTS.get(tool, {}))
                assert bool(result.is_error) is (tool not in may_use)
                if result.is_error:
                    assert result.model_dump_json().replace(tool, f"no_{tool}") == unknown.model_dump_json()

    run(work)


@pytest.mark.parametrize("mode", MODES)
def test_resources_templates_and_prompts_exist_only_for_users_with_the_permission(mode: Any) -> None:
    clerk, ann = in_django.user("clerk"), in_django.user("ann")

    async def work() -> None:
        async with client(server, user=clerk, mode=mode) as session:
            assert "secret://one" in [str(each.uri) for each in (await session.list_resources()).resources]
            templates = (await session.list_resource_templates()).resource_templates
            assert "secret://number/{number}" in [each.uri_template for each in templates]
            assert "secret_prompt" in [each.name for each in (await session.list_prompts()).prompts]
            assert (await session.read_resource("secret://one")).contents[0].text == "secret"  # type: ignore[union-attr]
            assert (await session.read_resource("secret://number/7")).contents[0].text == "secret 7"  # type: ignore[union-attr]
            assert (await session.get_prompt("secret_prompt", {"number": "7"})).messages
        async with client(server, user=ann, mode=mode) as session:
            assert [str(each.uri) for each in (await session.list_resources()).resources] == ["user://me"]
            templates = (await session.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == ["user://me/{tag}"]
            assert [each.name for each in (await session.list_prompts()).prompts] == ["greet"]
            for uri in ("secret://one", "secret://number/7", "secret://number/not-a-number", "secret://none"):
                with pytest.raises(MCPError, match=f"Unknown resource: {uri}"):
                    await session.read_resource(uri)

    run(work)


def test_a_hidden_prompt_or_resource_is_not_completed() -> None:
    made = MCPServer("server")
    asked: list[str] = []

    @made.prompt(permission="auth.view_user")
    def secret(word: str) -> str:
        return word

    @made.resource("secret://{word}", permission="auth.view_user")
    def secret_resource(word: str) -> str:
        return word

    @made.completion()
    async def complete(ref: Any, argument: CompletionArgument, context: Any) -> Completion:
        asked.append(str(get_user()))
        return Completion(values=["found"])

    async def work() -> None:
        for name in ("clerk", "ann"):
            user = await User.objects.aget(username=name)
            async with client(made, user=user) as session:
                for ref in (
                    PromptReference(type="ref/prompt", name="secret"),
                    ResourceTemplateReference(type="ref/resource", uri="secret://{word}"),
                ):
                    found = await session.complete(ref, {"name": "word", "value": ""})
                    assert found.completion.values == (["found"] if name == "clerk" else [])

    run(work)
    assert asked == ["clerk", "clerk"]


def test_removing_a_tool_removes_its_permission() -> None:
    made = MCPServer("server")
    made.add_tool(describe, "measure", permission="auth.view_user")
    made.remove_tool("measure")
    made.add_tool(describe, "measure")

    async def work() -> None:
        async with client(made) as session:
            assert await result_of(session, "measure") == "described"

    run(work)


def describe() -> str:
    return "described"


def test_a_tool_calls_another_with_the_permissions_of_its_user() -> None:
    made = MCPServer("server")
    made.add_tool(describe, "inner", permission="auth.view_user")

    @made.tool()
    async def outer() -> str:
        result = await made.call_tool("inner", {})
        return str(result.content[0].text)  # type: ignore[union-attr]

    clerk, ann = in_django.user("clerk"), in_django.user("ann")

    async def work() -> None:
        async with client(made, user=clerk) as allowed, client(made, user=ann) as refused:
            assert await result_of(allowed, "outer") == "described"
            result = await refused.call_tool("outer", {})
            assert "Unknown tool: inner" in result.content[0].text  # type: ignore[union-attr]

    run(work)


def test_a_user_who_is_deactivated_or_loses_a_permission_loses_access_at_once(user_of_the_test: Any) -> None:
    made = MCPServer("server")
    made.add_tool(describe, "named", permission="auth.view_user")
    made.add_tool(describe, "any_user", permission=lambda user: user.is_authenticated)
    made.add_tool(describe, "staff", permission=lambda user: user.is_staff)

    async def work() -> None:
        async with client(made, user=user_of_the_test) as session:

            async def listed() -> list[str]:
                return [tool.name for tool in (await session.list_tools()).tools]

            user = User.objects.filter(pk=user_of_the_test.pk)
            assert await listed() == ["named", "any_user", "staff"]
            await user.aupdate(is_superuser=False, is_staff=False)
            assert await listed() == ["any_user"]
            await user.aupdate(is_active=False)
            assert await listed() == []
            await user.adelete()
            assert await listed() == []

    run(work)


class Raising(User):
    class Meta:
        proxy = True
        app_label = "auth"

    def has_perms(self, *args: Any) -> bool:
        raise RuntimeError("password of the database")


@pytest.mark.parametrize("mode", MODES)
def test_a_permission_that_cannot_be_looked_up_is_refused_without_details(mode: Any) -> None:
    made = MCPServer("server")
    made.add_tool(describe, "named", permission="auth.view_user")
    made.add_tool(describe, "for_everybody")

    async def work() -> None:
        async with client(made, user=Raising(username="any"), mode=mode) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == ["for_everybody"]
            refused = await session.call_tool("named", {})
            assert refused.content[0].text == "Unknown tool: named"  # type: ignore[union-attr]

    run(work)


@pytest.fixture
def user_of_the_test() -> Iterator[Any]:
    user = User.objects.create_user("for_this_test", is_superuser=True, is_staff=True)
    yield user
    User.objects.filter(username="for_this_test").delete()


def test_with_a_user_model_without_permissions_a_callable_decides() -> None:
    made = MCPServer("server")
    made.add_tool(describe, "named", permission="auth.view_user")
    made.add_tool(describe, "any_user", permission=lambda user: user.is_authenticated)

    class Plain(AbstractBaseUser):
        is_active = True
        USERNAME_FIELD = "id"

        class Meta:
            app_label = "contenttypes"

    @made.tool()
    async def who() -> str:
        return type(get_user()).__name__

    async def work() -> None:
        async with client(made, user=Plain(id=7)) as session:
            assert [tool.name for tool in (await session.list_tools()).tools] == ["any_user", "who"]
            assert await result_of(session, "who") == "Plain"

    run(work)


def test_a_subscriber_gets_no_notifications_of_a_hidden_resource_and_cannot_tell_it_from_a_missing_one() -> None:
    bus = InMemorySubscriptionBus()
    made = MCPServer("server", subscriptions=bus)

    @made.resource("open://{number}")
    def opened(number: int) -> str:
        return "open"

    @made.resource("secret://{number}", permission="auth.view_user")
    def secret(number: int) -> str:
        return "secret"

    uris = ["secret://7", "nowhere://7", "open://7"]

    async def heard(name: str) -> list[str]:
        async with (
            client(made, user=await User.objects.aget(username=name)) as session,
            session.listen(resource_subscriptions=uris) as subscription,
        ):
            assert subscription.honored.resource_subscriptions == uris
            for uri in ("secret://7", "open://7"):
                await bus.publish(ResourceUpdated(uri=uri))
            events = []
            async for event in subscription:
                events.append(event.uri)  # type: ignore[union-attr]
                if event.uri == "open://7":  # type: ignore[union-attr]
                    return events
        raise AssertionError("The subscription ended.")

    async def work() -> None:
        assert await heard("clerk") == ["secret://7", "open://7"]
        assert await heard("ann") == ["open://7"]

    run(work)


# The client for tests


class TheClientInADjangoTest(TestCase):
    """What docs/tools.md shows, and what it relies on."""

    def setUp(self) -> None:
        self.made = MCPServer("server")

        @self.made.read_tool(permission="auth.view_user")
        def names() -> list[str]:
            return sorted(User.objects.values_list("username", flat=True))

        @self.made.write_tool(confirm="Create {name}?")
        def create(name: str) -> str:
            return str(User.objects.create(username=name))

        @self.made.write_tool(confirm="Create {name}?")
        async def acreate(name: str) -> str:
            return str(await User.objects.acreate(username=name))

    async def test_the_tool_sees_what_the_test_has_not_committed_and_the_other_way_round(self) -> None:
        root = await User.objects.aget(username="root")
        await User.objects.acreate(username="new")
        for mode in MODES:
            async with client(self.made, user=root, answers=[True, True], mode=mode) as session:  # type: ignore[arg-type]
                assert "new" in await result_of(session, "names")
                await session.call_tool("create", {"name": f"made-{mode}"})
                await session.call_tool("acreate", {"name": f"amade-{mode}"})
        assert await User.objects.filter(username__contains="made-").acount() == 4

    async def test_a_permission_that_is_granted_during_a_session_counts(self) -> None:
        ann = await User.objects.aget(username="ann")
        assert not await ann.ahas_perm("auth.view_user")  # and remembers it
        async with client(self.made, user=ann) as session:
            assert (await session.call_tool("names", {})).is_error
            await ann.user_permissions.aadd(await Permission.objects.aget(codename="view_user"))
            assert not (await session.call_tool("names", {})).is_error

    def test_the_transaction_of_each_test_is_rolled_back(self) -> None:
        assert sorted(User.objects.values_list("username", flat=True)) == in_django.USERS


@pytest.mark.parametrize("mode", MODES)
def test_a_question_without_an_answer_fails_the_test_and_names_the_question(mode: Any) -> None:
    async def work() -> None:
        async with client(server, answers=[True], mode=mode) as session:
            await session.call_tool("cancel", {"number": 1})
            await session.call_tool("cancel", {"number": 2})

    with pytest.raises(AssertionError, match=r"The tool asked 'Cancel order 2.', but the test has only 1 answers"):
        run(work)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_a_test_leaves_the_client_unchanged(mode: Any) -> None:
    async def work() -> None:
        async with client(server, mode=mode):
            pytest.skip("a reason")

    with pytest.raises(pytest.skip.Exception, match="a reason"):
        run(work)
