"""An MCP server with everything that the official conformance suite asks a server for.

Names, texts and schemas are the suite's: it looks for them. Everything is registered with the public means of
``mcp_serving.MCPServer``, so that the suite speaks of that class and not only of the SDK's.
"""

import asyncio
import base64
import json
from typing import Annotated, Any, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from mcp_serving import MCPServer, sdk

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="


def text(value: str) -> TextContent:
    return TextContent(type="text", text=value)


def image() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri: str, value: str, mime_type: str = "text/plain") -> EmbeddedResource:
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=value)
    return EmbeddedResource(type="resource", resource=contents)


# JSON Schema 2020-12: a tool whose schema no Python signature could give

JSON_SCHEMA_2020_12 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def json_schema_2020_12_tool() -> str:
    """Its input schema has every keyword of JSON Schema 2020-12 that has to reach the client unharmed."""
    return "called"


with_a_schema_of_its_own = Tool.from_function(json_schema_2020_12_tool)
with_a_schema_of_its_own.parameters = JSON_SCHEMA_2020_12

server: MCPServer[Any] = MCPServer("conformance-server", version="1.0", tools=[with_a_schema_of_its_own])


# Tools: kinds of content


@server.tool()
def test_simple_text() -> str:
    """Answers with text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[ImageContent]:
    """Answers with an image."""
    return [image()]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    """Answers with a sound."""
    return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    """Answers with a resource."""
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Answers with text, an image and a resource."""
    return [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


@server.tool()
def test_error_handling() -> str:
    """Always fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


# Tools: what is said while they run


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three messages to the client."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(0.05)
    return "Logged three messages."


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return "Reported progress three times."


@server.tool()
async def test_reconnection(ctx: Context) -> str:
    """Closes its stream in the middle of the call; the client comes back for the rest."""
    await ctx.info("Before the disconnect")
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    await ctx.info("After the reconnect")
    return "Reconnection test completed"


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    """Adds a tool, removes it, and says that the list has changed."""
    server.add_tool(test_simple_text, name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "The list of tools has changed."


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Adds a prompt, removes it, and says that the list has changed."""
    server.add_prompt(Prompt.from_function(test_simple_prompt, name="test_dynamic_prompt"))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "The list of prompts has changed."


# Tools: questions to the client within a session (up to 2025-11-25)


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    result = await ctx.session.create_message(
        messages=[SamplingMessage(role="user", content=text(prompt))],
        max_tokens=100,
        related_request_id=ctx.request_id,  # else it goes to the GET stream, which the client may not have opened
    )
    return f"LLM response: {result.content.text if isinstance(result.content, TextContent) else ''}"


async def elicited(ctx: Context, message: str, form: type[BaseModel]) -> str:
    result = await ctx.elicit(message, form)
    content = result.data.model_dump_json() if result.action == "accept" else "{}"
    return f"action={result.action}, content={content}"


class Account(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user for a name and an address."""
    return f"User response: {await elicited(ctx, message, Account)}"


class WithDefaults(BaseModel):
    """A default of each primitive type."""

    name: str = Field("John Doe", description="User name")
    age: int = Field(30, description="User age")
    score: float = Field(95.5, description="User score")
    status: Literal["active", "inactive", "pending"] = Field("active", description="User status")
    verified: bool = Field(True, description="Verification status")


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a form whose fields have defaults."""
    return f"Elicitation completed: {await elicited(ctx, 'Please review the form', WithDefaults)}"


def titled(**options: str) -> list[dict[str, str]]:
    return [{"const": value, "title": title} for value, title in options.items()]


class WithEnums(BaseModel):
    """The five ways of writing an enum in a form: pydantic has words for the first alone."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})  # noqa: N815
    titledSingle: str = Field(  # noqa: N815
        json_schema_extra={"oneOf": titled(value1="First Option", value2="Second Option", value3="Third Option")}
    )
    legacyEnum: str = Field(  # noqa: N815
        json_schema_extra={
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        }
    )
    untitledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={"items": {"anyOf": titled(value1="First Choice", value2="Second Choice")}}
    )


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with a form of enums."""
    return f"Elicitation completed: {await elicited(ctx, 'Please select options', WithEnums)}"


# Tools: questions to the client in several round trips (2026-07-28)


def form(message: str, **properties: str) -> ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str) -> CreateMessageRequest:
    messages = [SamplingMessage(role="user", content=text(prompt))]
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=100))


def answered(ctx: Context, key: str, field: str) -> Any:
    """The field of an accepted form; None where there is no such answer."""
    answer = (ctx.input_responses or {}).get(key)
    return (answer.content or {}).get(field) if isinstance(answer, ElicitResult) else None


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks the user for a name."""
    if name := answered(ctx, "user_name", "name"):
        return f"Hello, {name}!"
    return InputRequiredResult(input_requests={"user_name": form("What is your name?", name="string")})


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """Asks the client's model for a capital."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if isinstance(answer, CreateMessageResult) and isinstance(answer.content, TextContent):
        return answer.content.text
    return InputRequiredResult(input_requests={"capital_question": sampling("What is the capital of France?")})


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """Asks the client for its roots."""
    answer = (ctx.input_responses or {}).get("client_roots")
    if isinstance(answer, ListRootsResult):
        return f"Roots: {', '.join(str(root.uri) for root in answer.roots)}"
    return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """Asks for a yes, with a state that has to come back."""
    if ctx.request_state == "the first round" and answered(ctx, "confirm", "ok") is not None:
        return "state-ok"
    return InputRequiredResult(
        input_requests={"confirm": form("Please confirm", ok="boolean")}, request_state="the first round"
    )


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Asks the user, the model and the client at once."""
    questions: dict[str, InputRequest] = {
        "user_name": form("What is your name?", name="string"),
        "greeting": sampling("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }
    if questions.keys() <= (ctx.input_responses or {}).keys():
        return "All three were answered."
    return InputRequiredResult(input_requests=questions, request_state="the first round")


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name, then for a color."""
    state = json.loads(ctx.request_state or "{}")
    if "name" in state and (color := answered(ctx, "step2", "color")):
        return f"{state['name']} likes {color}."
    if name := answered(ctx, "step1", "name"):
        return InputRequiredResult(
            input_requests={"step2": form("Step 2: What is your favorite color?", color="string")},
            request_state=json.dumps({"name": name}),
        )
    return InputRequiredResult(
        input_requests={"step1": form("Step 1: What is your name?", name="string")}, request_state="{}"
    )


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """Does nothing against a state that was tampered with: it never sees one."""
    if ctx.request_state is not None:
        return "The state came back as it was."
    return InputRequiredResult(
        input_requests={"confirm": form("Please confirm", ok="boolean")}, request_state="the first round"
    )


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only for what the client says it can do."""
    capabilities = ctx.client_capabilities
    questions: dict[str, InputRequest] = {}
    if capabilities is not None and capabilities.sampling is not None:
        questions["greeting"] = sampling("Generate a greeting")
    if capabilities is not None and capabilities.elicitation is not None:
        questions["user_name"] = form("What is your name?", name="string")
    return InputRequiredResult(input_requests=questions, request_state="the first round")


@server.tool()
async def test_streaming_elicitation(ctx: Context) -> InputRequiredResult:
    """Has nothing but notifications and the question itself on its stream."""
    await ctx.report_progress(1, 2, "Before the question")
    return InputRequiredResult(input_requests={"user_name": form("What is your name?", name="string")})


@server.tool()
async def test_logging_tool(ctx: Context) -> str:
    """Logs to a client that has not asked for it, which must not get it."""
    await ctx.info("Nobody has asked for this message")
    return "Logged a message."


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    """Refuses a client without the sampling capability."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs a client with the sampling capability.",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return "The client has the sampling capability."


@server.tool()
def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Its argument is mirrored in a header, which has to agree with it."""
    return f"region={region}"


# Resources


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:  # noqa: A002
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    return "Watched resource content"


# Prompts


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """A prompt without arguments."""
    return [UserMessage(text("This is a simple prompt for testing."))]


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """A prompt with two arguments."""
    return [UserMessage(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803
    """A prompt with a resource in it."""
    return [
        UserMessage(embedded(resourceUri, "Embedded resource content for testing.")),
        UserMessage(text("Please process the embedded resource above.")),
    ]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """A prompt with an image in it."""
    return [UserMessage(image()), UserMessage(text("Please analyze the image above."))]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """A prompt that asks the user for a context first."""
    if context := answered(ctx, "user_context", "context"):
        return [UserMessage(text(f"Use the following context: {context}"))]
    return InputRequiredResult(
        input_requests={"user_context": form("What context should the prompt use?", context="string")}
    )


@server.completion()
def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    values = [value for value in ("paris", "park", "party") if value.startswith(argument.value)]
    return Completion(values=values, total=len(values), has_more=False)


# What the SDK's MCPServer has no decorators for: its low-level server takes these


async def set_level(ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
    return EmptyResult()


low_level = sdk.low_level(server)
low_level.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
