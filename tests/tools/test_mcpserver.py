"""MCPServer and Registry: all that the SDK's class offers, and what ours adds."""

# No postponed annotations here: the tools are declared inside of tests, where the SDK could not read them.

import functools
import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from mcp.server.context import ServerRequestContext
from mcp.server.extension import Extension, ResourceBinding, ToolBinding
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver import MCPServer as SDKMCPServer
from mcp.server.mcpserver.exceptions import InvalidSignature, ToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.mcpserver.resources import FunctionResource, TextResource
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import Completion, CompletionArgument, PromptReference, TextContent, ToolAnnotations
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tests.project import postponed
from tests.support import in_django  # noqa: F401 - sets Django up
from tests.support.harness import DEADLINE, ROOT

from django.test import override_settings  # isort: skip - after Django is set up
from mcp_serving import StreamableHTTPHandler, sdk  # isort: skip
from mcp_serving.testing import Answers, client  # isort: skip
from mcp_serving import MCPServer, Registry  # isort: skip

MODES = ["auto", "legacy"]


@pytest.fixture
def server() -> MCPServer[Any]:
    return MCPServer("server")


def run(work: Any) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


def call(server: MCPServer[Any], name: str, **arguments: Any) -> Any:
    """What the tool answers, in both generations, which have to agree."""
    answers = []

    async def work() -> None:
        for mode in MODES:
            async with client(server, answers=Answers(*[True] * 9), mode=mode) as session:  # type: ignore[arg-type]
                result = await session.call_tool(name, arguments)
                assert not result.is_error, result
                answers.append(result.structured_content or result.content[0])

    run(work)
    assert answers[0] == answers[1]
    return answers[0]


# What the SDK's class can do


class Word(BaseModel):
    word: str


class Counter:
    """Counts."""

    def __call__(self, by: int) -> int:
        return by + 1


class AsyncCounter:
    async def __call__(self, by: int) -> int:
        return by + 1

    async def method(self, by: int) -> int:
        return by + 1


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def aadd(a: int, b: int) -> int:
    return a + b


CALLABLES = {
    "partial": functools.partial(add, 1),
    "partial by name": functools.partial(add, b=1),
    "partial of a coroutine": functools.partial(aadd, 1),
    "object": Counter(),
    "object with an async call": AsyncCounter(),
    "bound method": AsyncCounter().method,
    "postponed": postponed.add_one,
    "partial of a postponed": functools.partial(postponed.add, Word(word="x")),
    "lambda": lambda by: by + 1,
}


@pytest.mark.parametrize("function", CALLABLES.values(), ids=CALLABLES)
@pytest.mark.parametrize("write", [False, True])
def test_any_callable_can_be_a_tool(function: Any, write: bool, server: MCPServer[Any]) -> None:
    if write:
        server.write_tool("count", confirm="Count?")(function)
    else:
        server.add_tool(function, "count")
    (tool,) = anyio.run(server.list_tools)
    argument, *_ = [name for name in tool.input_schema["properties"] if name in ("a", "b", "by")]
    answer = call(server, "count", **{argument: 2})
    assert answer == {"result": 3} if tool.output_schema else answer.text == "3"


def test_a_partial_is_described_by_its_function(server: MCPServer[Any]) -> None:
    server.add_tool(functools.partial(add, 1), "one")
    server.add_tool(Counter(), "two")
    assert [tool.description for tool in anyio.run(server.list_tools)] == ["Adds.", "Counts."]


def test_a_callable_without_a_name_needs_a_given_name(server: MCPServer[Any]) -> None:
    with pytest.raises(ValueError, match="has no __name__ that could name the tool"):
        server.tool()(functools.partial(add, 1))
    with pytest.raises(ValueError, match="has no __name__ that could name the prompt"):
        server.prompt()(functools.partial(add, 1))


def test_type_hints_that_cannot_be_read_at_run_time_are_an_error_that_names_the_tool(server: MCPServer[Any]) -> None:
    for declare in (server.tool("t"), server.write_tool("t", confirm="?"), server.prompt("t")):
        with pytest.raises(InvalidSignature, match=r"type hints of 't' cannot be read at run time: .*Decimal"):
            declare(postponed.for_type_checkers_only)
    server.tool("t")(add)  # and the name is still free


def test_a_confirm_and_a_permission_may_have_hints_for_type_checkers_only(server: MCPServer[Any]) -> None:
    server.write_tool(confirm=postponed.question)(add)
    assert call(server, "add", a=1, b=2) == {"result": 3}


def test_context_lifespan_and_progress_reach_a_tool() -> None:
    lifespan_left: list[bool] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, int]]:
        yield {"start": 40}
        lifespan_left.append(True)

    server = MCPServer("server", lifespan=lifespan)

    @server.tool()
    def sync_total(ctx: Context[dict[str, int], Any], more: int) -> int:
        return ctx.request_context.lifespan_context["start"] + more

    @server.tool()
    async def total(more: int, ctx: Context[dict[str, int], Any]) -> int:
        await ctx.report_progress(1, 2)
        return ctx.request_context.lifespan_context["start"] + more

    assert call(server, "total", more=2) == {"result": 42}
    assert call(server, "sync_total", more=2) == {"result": 42}
    assert lifespan_left == [True] * 4


def test_resolvers_may_be_nested_shared_and_ask(server: MCPServer[Any]) -> None:
    ran: list[str] = []

    def base(number: int) -> int:
        ran.append("base")
        return number * 10

    async def left(base: Annotated[int, Resolve(base)]) -> int:
        return base + 1

    def right(base: Annotated[int, Resolve(base)], ctx: Context) -> int:
        assert ctx.request_id is not None
        return base + 2

    def word(left: Annotated[int, Resolve(left)]) -> Elicit[Word]:
        return Elicit(f"A word for {left}?", Word)

    @server.tool()
    def both(
        number: int,
        left: Annotated[int, Resolve(left)],
        right: Annotated[int, Resolve(right)],
    ) -> list[int]:
        return [left, right]

    @server.tool()
    def asking(number: int, word: Annotated[Word, Resolve(word)]) -> str:
        return word.word

    assert call(server, "both", number=4) == {"result": [41, 42]}
    assert ran == ["base"] * 2  # once a call

    async def work() -> None:
        for mode in MODES:
            answers = Answers({"word": "yes"})
            async with client(server, answers=answers, mode=mode) as session:  # type: ignore[arg-type]
                result = await session.call_tool("asking", {"number": 4})
                assert result.structured_content == {"result": "yes"}
                assert answers.questions == ["A word for 41?"]

    run(work)


def test_structured_output_and_images_come_through(server: MCPServer[Any]) -> None:
    @server.tool()
    def model() -> Word:
        return Word(word="w")

    @server.write_tool(confirm="Draw?")
    def picture() -> Image:
        return Image(data=b"png", format="png")

    @server.tool(structured_output=False)
    def plain() -> Word:
        return Word(word="w")

    assert call(server, "model") == {"word": "w"}
    assert call(server, "picture").mime_type == "image/png"
    assert '"w"' in call(server, "plain").text
    schemas = {tool.name: tool.output_schema for tool in anyio.run(server.list_tools)}
    assert schemas["model"] is not None
    assert schemas["plain"] is None


class Weather(Extension):
    identifier = "com.example/weather"

    def tools(self) -> list[ToolBinding]:
        return [ToolBinding(fn=add, kwargs={"name": "weather"})]

    def resources(self) -> list[ResourceBinding]:
        return [ResourceBinding(TextResource(uri="weather://now", text="sunny"))]

    async def intercept_tool_call(self, params: Any, ctx: ServerRequestContext[Any, Any], call_next: Any) -> Any:
        result = await call_next(ctx)
        result.content.append(TextContent(type="text", text="intercepted"))
        return result


def test_extensions_and_the_low_level_server_work() -> None:
    server = MCPServer("server", extensions=[Weather()])
    seen: list[str] = []

    async def watch(ctx: ServerRequestContext[Any, Any], call_next: Any) -> Any:
        seen.append(ctx.method)
        return await call_next(ctx)

    sdk.low_level(server).middleware.append(watch)

    async def work() -> None:
        async with client(server) as session:
            result = await session.call_tool("weather", {"a": 1, "b": 2})
            assert [content.text for content in result.content] == ["3", "intercepted"]  # type: ignore[union-attr]
            assert (await session.read_resource("weather://now")).contents[0].text == "sunny"  # type: ignore[union-attr]

    run(work)
    assert "tools/call" in seen
    assert list(sdk.low_level(server).extensions) == ["com.example/weather"]


def test_tools_and_resources_of_the_constructor_can_be_removed() -> None:
    def base(b: int) -> int:
        return b

    def total(a: int, b: int, base: Annotated[int, Resolve(base)]) -> int:
        return a + b + base

    tool = Tool.from_function(total)
    resource = FunctionResource.from_function(lambda: "text", uri="r://one", name="one")
    for _ in range(2):  # the same objects, in two servers
        server = MCPServer("server", tools=[tool], resources=[resource, TextResource(uri="r://two", text="2")])
        assert call(server, "total", a=1, b=2) == {"result": 5}
        with pytest.raises(ValueError, match="There is a tool 'total' already"):
            server.add_tool(total)
        server.remove_tool("total")
        server.add_tool(add, "total")
        assert call(server, "total", a=1, b=2) == {"result": 3}

    async def work() -> None:
        async with client(server) as session:
            for uri, text in (("r://one", "text"), ("r://two", "2")):
                assert (await session.read_resource(uri)).contents[0].text == text  # type: ignore[union-attr]

    run(work)
    with pytest.raises(ValueError, match="There is a tool 'total' already"):
        MCPServer("server", tools=[tool, tool])
    with pytest.raises(ValueError, match="There is a resource 'r://one' already"):
        MCPServer("server", resources=[resource, resource])
    with pytest.raises(ToolError):
        server.remove_tool("unknown")


@override_settings(DEBUG=False)
@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_says_what_is_wrong_with_its_arguments_and_logs_no_error(
    mode: Any, server: MCPServer[Any], caplog: pytest.LogCaptureFixture
) -> None:
    @server.prompt()
    def greet(name: str, times: int = 1) -> str:
        return f"Greet {name} {times} times" if times < 7 else Word(word=7).word  # type: ignore[arg-type]

    def told(prompt: str, **arguments: str) -> str:
        texts = []

        async def work() -> None:
            async with client(server, mode=mode) as session:
                try:
                    result = await session.get_prompt(prompt, arguments)
                    texts.append(result.messages[0].content.text)  # type: ignore[union-attr]
                except MCPError as error:
                    texts.append(error.message)

        run(work)
        return str(texts[0])

    assert told("greet", name="Ann", times="2") == "Greet Ann 2 times"
    assert told("none") == "Unknown prompt: none"
    assert told("greet") == "Prompt greet lacks arguments: name"
    assert told("greet", name="Ann", times="x").startswith("Wrong arguments: times: Input should be a valid integer")
    assert told("greet", name="Ann", more="x") == "Prompt greet has no arguments more"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "word" not in told("greet", name="Ann", times="7")


def test_prompts_completions_and_custom_routes_work(server: MCPServer[Any]) -> None:
    prompt = Prompt.from_function(lambda name: f"Hello {name}", name="hello")
    for each in (server, MCPServer("other")):
        each.add_prompt(prompt)

    @server.completion()
    def complete(ref: Any, argument: CompletionArgument, context: Any) -> Completion:
        return Completion(values=[argument.value + "na"])

    @server.custom_route("/health", ["GET"])
    async def health(_: Request) -> Response:
        return PlainTextResponse("well")

    async def work() -> None:
        async with client(server) as session:
            got = await session.get_prompt("hello", {"name": "Ann"})
            assert got.messages[0].content.text == "Hello Ann"  # type: ignore[union-attr]
            found = await session.complete(
                PromptReference(type="ref/prompt", name="hello"), {"name": "name", "value": "An"}
            )
            assert found.completion.values == ["Anna"]

    run(work)
    assert len(StreamableHTTPHandler(server).urlpatterns("mcp")) == 2
    server.remove_prompt("hello")
    server.add_prompt(prompt)


def test_positional_arguments_are_those_of_the_sdks_class() -> None:
    arguments = ("name", "Title", "Description", "Instructions", "https://example.com", None, "1.2")
    for made in (MCPServer(*arguments), SDKMCPServer(*arguments)):
        assert (made.name, made.title, made.instructions, made.version) == ("name", "Title", "Instructions", "1.2")


def test_with_a_request_state_policy_of_the_project_an_answer_counts_once() -> None:
    server = MCPServer("server", request_state_security=RequestStateSecurity(keys=["k" * 32], audience="a", ttl=60))
    server.write_tool(confirm="Add?")(add)
    assert call(server, "add", a=1, b=2) == {"result": 3}


# Logging


LOGGING = """
import logging, logging.config, sys, io
from django.conf import settings
settings.configure(SECRET_KEY="x", LOGGING={
    "version": 1, "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}},
    "loggers": {"shop": {"handlers": ["console"], "level": "INFO"}},
})
import django; django.setup()
from MODULE import MCPServer
MCPServer("server")
logging.getLogger("shop").info("sold")
print("root handlers:", len(logging.getLogger().handlers))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "handlers", "lines"),
    [("mcp.server.mcpserver", 1, 2), ("mcp_serving.tools.server", 0, 1)],
    ids=["the SDK's class", "ours"],
)
def test_our_server_adds_no_root_log_handler_but_the_sdks_does(module: str, handlers: int, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING.replace("MODULE", module)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"root handlers: {handlers}" in done.stdout
    assert (done.stdout + done.stderr).count("sold") == lines


# Names, decorators, annotations


def test_declaring_a_name_twice_is_an_error_and_overwrites_nothing(server: MCPServer[Any]) -> None:
    declarations: list[Any] = [
        server.tool("one"),
        server.read_tool("one"),
        server.write_tool("one", confirm="?"),
        server.resource("r://one"),
        server.resource("r://one/{tag}"),
        server.prompt("one"),
    ]

    def function() -> str:
        return "first"

    def template(tag: str) -> str:
        return tag

    for position in (0, 3, 4, 5):
        declarations[position](template if position == 4 else function)
    for declare in declarations:
        with pytest.raises(ValueError, match=r"There is a (tool|resource|prompt) '.*one.*' already"):
            declare(template)
    assert call(server, "one") == {"result": "first"}
    assert server.write_tools == []


def test_a_decorator_that_is_not_called_is_a_type_error(server: MCPServer[Any]) -> None:
    for owner in (server, Registry()):
        for decorator in ("tool", "read_tool", "write_tool", "resource", "prompt"):
            arguments = {"confirm": "?"} if decorator == "write_tool" else {}
            with pytest.raises(TypeError, match=f"Write @{decorator}\\(.*\\), not @{decorator}"):
                getattr(owner, decorator)(add, **arguments)


def test_read_tools_and_write_tools_have_annotations_that_say_so(server: MCPServer[Any]) -> None:
    server.read_tool("read")(add)
    server.write_tool("write", confirm="?")(add)
    server.read_tool("open", annotations=ToolAnnotations(read_only_hint=True, open_world_hint=True))(add)
    server.write_tool("mild", confirm="?", annotations=ToolAnnotations(destructive_hint=False))(add)
    hints = {
        tool.name: tool.annotations.model_dump(exclude_none=True)
        for tool in anyio.run(server.list_tools)
        if tool.annotations is not None
    }
    assert hints == {
        "read": {"read_only_hint": True, "idempotent_hint": True},
        "write": {"read_only_hint": False, "destructive_hint": True, "idempotent_hint": False},
        "open": {"read_only_hint": True, "open_world_hint": True},
        "mild": {"destructive_hint": False},
    }


@pytest.mark.parametrize("owner", [MCPServer("server"), Registry()], ids=["server", "registry"])
def test_annotations_that_contradict_the_decorator_are_an_error_that_names_the_tool(owner: Any) -> None:
    for wrong in (ToolAnnotations(read_only_hint=False), ToolAnnotations(read_only_hint=True, destructive_hint=True)):
        with pytest.raises(ValueError, match="annotations of the read tool 'add' have read_only_hint="):
            owner.read_tool(annotations=wrong)(add)
    with pytest.raises(ValueError, match="annotations of the read tool 'add' have read_only_hint=None"):
        owner.read_tool(annotations=ToolAnnotations(title="x"))(add)
    with pytest.raises(ValueError, match="annotations of the write tool 'add' have read_only_hint=True"):
        owner.write_tool(confirm="?", annotations=ToolAnnotations(read_only_hint=True))(add)


@pytest.mark.parametrize("permission", ["view_user", "auth.", "", ["auth.view_user", "x"], []])
def test_an_invalid_permission_is_an_error_that_names_the_tool(permission: Any, server: MCPServer[Any]) -> None:
    with pytest.raises(ValueError, match=r"'add' has (the )?permission"):
        server.tool(permission=permission)(add)
    server.tool(permission="auth.view_user")(add)  # and the name is still free


# Registry


def registry() -> Registry:
    made = Registry()

    @made.read_tool()
    def zebra() -> str:
        return "zebra"

    @made.write_tool("act", confirm="Act on {what}?")
    def ape(what: str) -> str:
        return what

    @made.resource("zoo://all", name="all animals")
    def animals() -> str:
        return "all"

    @made.resource("zoo://{name}", permission="auth.view_user")
    def animal(name: str) -> str:
        return name

    @made.prompt(title="Feed it")
    def feed() -> str:
        return "Feed."

    @made.tool(description="Plain.")
    def ant() -> str:
        return "ant"

    return made


async def names(server: MCPServer[Any]) -> list[list[str]]:
    return [
        [tool.name for tool in await server.list_tools()],
        [str(resource.uri) for resource in await server.list_resources()],
        [template.uri_template for template in await server.list_resource_templates()],
        [prompt.name for prompt in await server.list_prompts()],
    ]


def test_several_servers_include_a_registry_in_order() -> None:
    zoo = registry()
    whole, reading = MCPServer("whole"), MCPServer("reading")
    whole.include(zoo)
    reading.include(zoo, write=False, prefix="zoo_")
    assert anyio.run(names, whole) == [["zebra", "act", "ant"], ["zoo://all"], ["zoo://{name}"], ["feed"]]
    assert anyio.run(names, reading) == [["zoo_zebra", "zoo_ant"], ["zoo://all"], ["zoo://{name}"], ["zoo_feed"]]
    assert (whole.write_tools, reading.write_tools) == (["act"], [])
    assert call(whole, "act", what="it") == {"result": "it"}
    assert call(reading, "zoo_zebra") == {"result": "zebra"}


def test_a_registry_is_included_whole_or_not_at_all() -> None:
    server = MCPServer("server")
    server.tool("ant")(add)
    with pytest.raises(ValueError, match="There is a tool 'ant' already: give one of the two another name"):
        server.include(registry())
    assert anyio.run(names, server) == [["ant"], [], [], []]
    server.include(registry(), prefix="a_")
    with pytest.raises(ValueError, match="There is a resource 'zoo://all' already"):
        server.include(registry(), prefix="b_")


def test_declaring_a_name_twice_in_a_registry_is_an_error_at_the_decorator() -> None:
    zoo = registry()
    with pytest.raises(ValueError, match="There is a tool 'ant' already"):
        zoo.read_tool("ant")(add)
    with pytest.raises(ValueError, match="There is a resource 'zoo://all' already"):
        zoo.resource("zoo://all")(add)
    zoo.prompt("ant")(add)  # a prompt is not a tool


def test_a_mistake_in_a_registry_is_an_error_at_the_decorator() -> None:
    zoo = Registry()
    for decorator in (
        zoo.read_tool(permission="view_user"),
        zoo.prompt(permission=["auth."]),
        zoo.resource("zoo://all", permission=[]),
    ):
        with pytest.raises(ValueError, match=r"'(add|zoo://all)' has (the )?permission"):
            decorator(add)
    with pytest.raises(ValueError, match="The question of tool 'add' uses 'number'"):
        zoo.write_tool(confirm="Add {number}?")(add)
    with pytest.raises(TypeError, match="The question of tool 'add' is 7"):
        zoo.write_tool(confirm=7)(add)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"[Uu]nclosed"):
        zoo.resource("zoo://{all")
    assert zoo.declarations == []


def test_permissions_may_be_any_iterable() -> None:
    zoo = Registry()
    zoo.read_tool(permission=(f"auth.{verb}_user" for verb in ("view", "change")))(add)
    for server in (MCPServer("one"), MCPServer("two")):
        server.include(zoo)
        assert server._tool_permissions._required == {"add": ("auth.view_user", "auth.change_user")}


def test_a_registry_with_a_function_that_the_sdk_rejects_is_not_included() -> None:
    zoo = registry()
    zoo.resource("zoo://{name}/{cage}")(add)  # whose arguments are others
    server = MCPServer("server")
    with pytest.raises(ValueError, match="cage"):
        server.include(zoo)
    assert anyio.run(names, server) == [[], [], [], []]


@pytest.mark.process
def test_a_registry_does_not_need_the_sdk() -> None:
    script = (
        "import sys; from mcp_serving.tools.registry import Registry; r = Registry(); "
        "r.write_tool(confirm='?', permission='shop.eat')(lambda: 1); print('mcp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Discovery


DISCOVERY = """
import sys
from django.conf import settings
settings.configure(SECRET_KEY="x", INSTALLED_APPS=THESE)
import django; django.setup()
from mcp_serving.loading import discover
assert not [name for name in sys.modules if name.endswith(".mcp")]
discover(); discover()
print(sorted(name for name in sys.modules if name.endswith(".mcp")))
"""


def discovered(*apps: str) -> subprocess.CompletedProcess[str]:
    script = DISCOVERY.replace("THESE", repr(["mcp_serving", *apps]))
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.process
def test_the_mcp_module_of_each_app_is_imported_when_the_server_is_loaded() -> None:
    done = discovered("django.contrib.auth", "django.contrib.contenttypes", "tests.project.apps.with_tools")
    assert done.stdout == "imported\n['tests.project.apps.with_tools.mcp']\n", done.stderr


@pytest.mark.process
def test_an_error_in_an_mcp_module_is_raised() -> None:
    done = discovered("tests.project.apps.with_an_error")
    assert done.returncode == 1
    assert "No module named 'that_does_not_exist'" in done.stderr


@pytest.mark.process
def test_an_error_in_an_mcp_module_is_raised_again_at_the_next_load() -> None:
    """What the module registered before it failed would otherwise be "taken already", which tells nobody anything."""
    again = DISCOVERY.replace("discover(); discover()", TWICE)
    script = again.replace("THESE", repr(["mcp_serving", "tests.project.apps.with_an_error"]))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("No module named 'that_does_not_exist'") == 2


TWICE = """
from django.core.exceptions import ImproperlyConfigured
for _ in range(2):
    try:
        discover()
    except ImproperlyConfigured as error:
        print(error)
"""


def test_a_server_keeps_nothing_of_a_tool_that_was_removed() -> None:
    server = MCPServer("x")

    def added_and_removed(number: int) -> weakref.ref[Any]:
        def tool() -> str:
            return str(number)

        server.add_tool(tool, f"tool_{number}")
        server.remove_tool(f"tool_{number}")
        return weakref.ref(tool)

    removed = [added_and_removed(number) for number in range(10)]
    gc.collect()
    assert [each() for each in removed] == [None] * 10
