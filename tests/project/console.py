"""A server with something of each kind that the console shows."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import json
import struct
import wave
import zlib
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from mcp.server.apps import Apps
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import AcceptedElicitation, CancelledElicitation, DeclinedElicitation, Elicit, Resolve
from mcp_types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ResourceLink,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from mcp_serving import MCPServer, get_user, notify_resource_updated
from tests.project.notes import note

APP = """<!doctype html>
<html lang="en"><title>The app</title>
<body style="font-family: system-ui"><h1 id="told">waiting</h1><p id="called"></p>
<script>
  const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  addEventListener("message", (event) => {
    const { id, method, params, result } = event.data;
    if (id === "init") send({ method: "ui/notifications/initialized" });
    if (method === "ui/notifications/tool-result") {
      document.getElementById("told").textContent = params.structuredContent.result;
      send({ id: "call", method: "tools/call", params: { name: "who", arguments: {} } });
    }
    if (id === "call") {
      const text = document.getElementById("called").textContent = result.content[0].text;
      send({ method: "ui/notifications/size-changed", params: { height: 300 + text.length } });
    }
  });
  send({ id: "init", method: "ui/initialize", params: { protocolVersion: "2026-01-26" } });
</script></body></html>"""

apps = Apps()


@apps.tool(resource_uri="ui://clock/app.html", description="The time, in an app.")
def clock() -> str:
    return "twelve o'clock"


apps.add_html_resource("ui://clock/app.html", APP)

server = MCPServer(
    "console-tests", title="Tests of the console", version="3.0", instructions="Be careful.", extensions=[apps]
)


# A form for each kind of schema


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    number: Annotated[int, Field(ge=1)] = 1


class Person(BaseModel):
    name: str
    address: Address
    nicknames: list[str] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Node(BaseModel):
    value: int
    children: list[Node] = []


@server.tool()
def every_kind(
    text: Annotated[str, Field(description="Some text")],
    count: Annotated[int, Field(ge=1, le=9)],
    ratio: float,
    on: bool,
    colour: Colour,
    day: date,
    person: Person,
    people: list[Person],
    tags: list[str],
    pet: Annotated[Cat | Dog, Field(discriminator="kind")],
    either: int | str,
    node: Node,
    counts: dict[str, int],
    maybe: int | None = None,
    maybe_colour: Colour | None = None,
    maybe_on: bool | None = None,
    by_default: str = "given",
) -> dict[str, Any]:
    """A form for each kind of schema."""
    given = dict(locals())
    return {name: repr(value) for name, value in given.items()}


def _many(**arguments: int) -> str:
    return f"{len(arguments)} arguments, the last is {arguments.get('argument_199')}"


_many.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter(f"argument_{n}", inspect.Parameter.KEYWORD_ONLY, annotation=int, default=n) for n in range(200)],
    return_annotation=str,
)
_many.__annotations__ = {**{f"argument_{n}": int for n in range(200)}, "return": str}
server.add_tool(_many, "many", description="A tool with 200 parameters.")


# Calls


@server.tool()
async def slow(ctx: Context, steps: int = 5, seconds: float = 0.05) -> str:
    """Tells how far it is, and what it does."""
    note("slow started")
    try:
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps, f"step {step}")
            await ctx.info(f"did step {step}")
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("slow cancelled")
        raise
    return "all steps done"


@server.tool()
def every_argument(text: str, number: int) -> str:
    """What it was given, and by whom."""
    return json.dumps({"text": text, "number": number, "user": str(get_user())})


@server.tool()
def who() -> str:
    """Who calls."""
    return f"for {get_user()}"


@server.write_tool(confirm="Delete {name}?", permission="auth.view_user", scopes=["things:delete"])
def delete(name: str) -> str:
    """Asks first; needs a permission."""
    note(f"deleted {name}")
    return f"deleted {name}"


class Details(BaseModel):
    reason: Annotated[str, Field(title="Why", min_length=3)]
    notify: bool = True


async def ask_for_details(name: str) -> Elicit[Details]:
    return Elicit(f"Why is {name} given back?", Details)


@server.tool()
async def give_back(
    name: str,
    details: Annotated[
        AcceptedElicitation[Details] | DeclinedElicitation | CancelledElicitation, Resolve(ask_for_details)
    ],
) -> str:
    """Asks for a reason, in a form."""
    if not isinstance(details, AcceptedElicitation):
        return f"not given back: {type(details).__name__}"
    return f"{name} was given back: {details.data.reason}, notify={details.data.notify}"


@server.tool()
async def interview(ctx: Context) -> str:
    """Asks twice in the middle of its call."""
    first = await ctx.elicit("Why?", Details)
    if not isinstance(first, AcceptedElicitation):
        return f"no reason: {first.action}"
    second = await ctx.elicit("Why really?", Details)
    reason = second.data.reason if isinstance(second, AcceptedElicitation) else second.action
    return f"{first.data.reason}, then {reason}"


@server.tool()
async def two_at_once(ctx: Context) -> str:
    """Asks two questions at the same time."""
    answers = await asyncio.gather(ctx.elicit("First?", Details), ctx.elicit("Second?", Details))
    return " and ".join(each.data.reason for each in answers if isinstance(each, AcceptedElicitation))


@server.tool()
async def sample(ctx: Context) -> str:
    """Asks the model of its client."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Hello"))
    return str(await ctx.session.create_message([message], max_tokens=5, related_request_id=ctx.request_id))


@server.tool()
async def roots(ctx: Context) -> str:
    """Asks for the folders of its client."""
    return str(await ctx.session.list_roots())


@server.write_tool(confirm="Rename {old}?", preview=True)
def rename(old: str, new: str) -> str:
    """Its question shows what it would change."""
    from django.contrib.auth.models import Group

    Group.objects.filter(name=old).update(name=new)
    return f"renamed to {new}"


@server.tool()
def broken() -> str:
    """Raises an exception that nobody foresaw."""
    raise RuntimeError("the secret of the log")


@server.tool()
def refused() -> str:
    """Raises an error for the model."""
    raise ToolError("There is no such order.")


@server.tool()
def big() -> str:
    """Five megabytes of text."""
    return "0123456789abcdef" * (5 * 2**16)


def png(size: int = 64) -> bytes:
    """A picture: red from left to right, green from top to bottom."""
    rows = b"".join(b"\0" + b"".join(bytes((x * 4, y * 4, 128)) for x in range(size)) for y in range(size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes(128 + (40 if n // 10 % 2 else -40) for n in range(4000)))
    return file.getvalue()


@server.tool()
def picture() -> Image:
    """An image."""
    return Image(data=png(), format="png")


@server.tool()
def media() -> list[TextContent | AudioContent | ResourceLink | EmbeddedResource]:
    """A sound, a link to a resource, and a resource."""
    return [
        TextContent(type="text", text="<script>alert(1)</script> is only text"),
        AudioContent(type="audio", data=base64.b64encode(wav()).decode(), mime_type="audio/wav"),
        ResourceLink(
            type="resource_link", uri="console://table", name="table", title="The table", mime_type="text/csv"
        ),
        EmbeddedResource(
            type="resource",
            resource=TextResourceContents(
                uri="console://inside", mime_type="application/json", text='{"inside": [1, 2]}'
            ),
        ),
    ]


# Resources


@server.resource("console://json", mime_type="application/json")
def some_json() -> dict[str, Any]:
    """A document."""
    return {"name": "Ann", "tags": ["a", "b"], "</script>": True}


@server.resource("console://table", mime_type="text/csv")
def table() -> str:
    """A table."""
    return "name,number\nTea,3\nCoffee,5\n"


@server.resource("console://page", mime_type="text/html")
def html_page() -> str:
    """A page that would like to run a script."""
    return "<h1>A page</h1><script>document.title = 'ran'; parent.document.title = 'ran'</script>"


@server.resource("console://picture", mime_type="image/png")
def picture_resource() -> bytes:
    """A picture."""
    return png()


@server.resource("console://drawing", mime_type="image/svg+xml")
def drawing() -> str:
    """A drawing."""
    return '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60"><circle cx="30" cy="30" r="20"/></svg>'


@server.resource("console://file", mime_type="application/zip")
def zipped() -> bytes:
    """Something for a download."""
    return b"PK\x05\x06" + bytes(18)


@server.resource("console://staff", permission="auth.view_user")
def staff_only() -> str:
    """For those who may view users."""
    return "staff only"


@server.resource("console://orders/{city}/{number}", mime_type="text/plain")
def order(city: str, number: str) -> str:
    """One order of a city."""
    return f"order {number} in {city}"


@server.tool()
async def touch(uri: str) -> str:
    """Tells subscribers that a resource has changed."""
    notify_resource_updated(uri)
    return f"told of {uri}"


@server.prompt()
def greeting(name: Annotated[str, Field(description="Whom to greet")], tone: str = "friendly") -> list[str]:
    """Greets somebody."""
    return [f"Greet {name} in a {tone} way.", "Keep it short."]


@server.completion()
def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
    offered = {"city": ["Amsterdam", "Antwerp", "Berlin"], "tone": ["friendly", "formal"]}.get(argument.name)
    if offered is None:
        return None
    return Completion(values=[each for each in offered if each.lower().startswith(argument.value.lower())])
