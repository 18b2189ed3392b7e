"""What functions return, and what clients receive of it."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import re
import uuid
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from mcp import Client
from mcp.server.mcpserver import Image
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict

from tests.support import in_django
from tests.support.documents import DOCS
from tests.support.harness import DEADLINE

from django.contrib.auth.models import Group, Permission, User  # isort: skip - after Django is set up
from django.db import models  # isort: skip
from django.db.models import FileField, QuerySet  # isort: skip
from django.db.models.fields.files import FieldFile  # isort: skip
from django.utils import translation  # isort: skip
from django.utils.functional import SimpleLazyObject  # isort: skip
from django.utils.safestring import mark_safe  # isort: skip
from django.utils.translation import gettext_lazy  # isort: skip

from mcp_serving import MCPServer  # isort: skip

pytestmark = pytest.mark.usefixtures("users")
assert in_django


class Color(enum.Enum):
    RED = "red"


class Status(models.TextChoices):
    OPEN = "open"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class GroupOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    name: str


class Widget:
    pass


@pytest.fixture(autouse=True)
def groups(users: None) -> Iterator[None]:
    Group.objects.bulk_create([Group(name="staff"), Group(name="editors")])
    yield
    Group.objects.all().delete()


NAMES = {
    **{each.__name__: each for each in (Decimal, date, datetime, time, timedelta, Color, Status, Point, Group)},
    **{each.__name__: each for each in (FieldFile, FileField)},
    "UUID": uuid.UUID,
    "gettext_lazy": gettext_lazy,
    "UTC": UTC,
}


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within_the_deadline() -> None:
        with anyio.fail_after(DEADLINE):
            await work()

    async_to_sync(within_the_deadline)()


def returned(make: Callable[[], Any], returns: Any = None) -> CallToolResult:
    """The result of a sync tool that returns ``make()``."""
    return _result(make, returns, False)


def _result(make: Callable[[], Any], returns: Any, is_async: bool) -> CallToolResult:
    server = MCPServer("results")

    def tool() -> Any:
        return make()

    async def async_tool() -> Any:
        return make()

    function = async_tool if is_async else tool
    if returns is not None:
        function.__annotations__["return"] = returns
    else:
        del function.__annotations__["return"]
    server.tool("tool")(function)
    results: list[CallToolResult] = []

    async def work() -> None:
        async with Client(server) as session:
            results.append(await session.call_tool("tool", {}))

    run(work)
    return results[0]


def text_of(result: CallToolResult) -> str:
    assert not result.is_error, result
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def documented() -> list[tuple[str, str, str]]:
    """The rows of the table in docs/tools.md."""
    section = (DOCS / "tools.md").read_text().split("## What a function may return", 1)[1].split("\n## ", 1)[0]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")]
    return [(kind, value.strip("`"), received.strip("`")) for kind, value, received in rows[2:]]


CASES = [
    (value, received, is_async)
    for kind, value, received in documented()
    for is_async in (False, True)
    # An async function cannot query the database in this way.
    if not (is_async and kind in ("model", "generator"))
]


@pytest.mark.parametrize(("value", "received", "is_async"), CASES)
def test_the_client_receives_what_the_table_of_the_documentation_says(
    value: str, received: str, is_async: bool
) -> None:
    expected = json.loads(received)
    text = text_of(_result(lambda: eval(value, dict(NAMES)), None, is_async))
    assert (text if isinstance(expected, str) else json.loads(text)) == expected


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_instance_whose_str_follows_a_foreign_key_is_its_text(is_async: bool) -> None:
    result = _result(lambda: Permission.objects.get(codename="view_user") if not is_async else _lazily(), str, is_async)
    assert "Can view user" in text_of(result)
    assert result.structured_content == {"result": text_of(result)}


def _lazily() -> Any:
    return SimpleLazyObject(lambda: Permission.objects.get(codename="view_user"))


def test_an_evaluated_query_set_is_sent_whole() -> None:
    def everyone() -> QuerySet[User]:
        found = User.objects.filter(username__startswith="many")
        assert len(found) == 41
        return found

    User.objects.bulk_create([User(username=f"many{number}") for number in range(41)])
    try:
        assert len(json.loads(text_of(returned(everyone)))) == 41
        assert len(returned(everyone, list[str]).structured_content["result"]) == 41  # type: ignore[index]
    finally:
        User.objects.filter(username__startswith="many").delete()


def test_a_pydantic_return_type_reads_the_attributes_of_models() -> None:
    result = returned(lambda: Group.objects.order_by("name"), list[GroupOut])
    assert result.structured_content == {"result": [{"name": "editors"}, {"name": "staff"}]}
    assert json.loads(text_of(result)) == [{"name": "editors"}, {"name": "staff"}]
    assert returned(lambda: Group(name="x"), GroupOut).structured_content == {"name": "x"}


def test_lazy_text_keeps_the_language_that_was_active_in_the_function() -> None:
    def yes() -> Any:
        translation.activate("de")
        return {"answer": gettext_lazy("Yes")}

    with translation.override("en"):  # the client runs the tool in its own context
        assert json.loads(text_of(returned(yes))) == {"answer": "Ja"}
    assert returned(lambda: gettext_lazy("Yes"), str).structured_content == {"result": "Yes"}


def test_safe_text_and_typed_django_values_are_sent_as_structured_content() -> None:
    assert returned(lambda: mark_safe("<b>"), str).structured_content == {"result": "<b>"}
    assert returned(lambda: [Status.OPEN], list[Status]).structured_content == {"result": ["open"]}
    assert returned(lambda: b"pdf", bytes).structured_content == {"result": base64.b64encode(b"pdf").decode()}
    assert returned(lambda: {"at": date(2026, 7, 28)}, dict[str, Any]).structured_content == {"at": "2026-07-28"}


def test_a_list_is_one_text_block_and_an_empty_list_too() -> None:
    assert text_of(returned(list, list[str])) == "[]"
    result = returned(lambda: [{"a": 1}, {"a": 2}], list[dict[str, int]])
    assert json.loads(text_of(result)) == [{"a": 1}, {"a": 2}]
    assert result.structured_content == {"result": [{"a": 1}, {"a": 2}]}
    assert returned(lambda: None, type(None)).content == []


def test_images_stay_content_blocks_beside_other_values() -> None:
    result = returned(lambda: [Image(data=b"png", format="png"), "text", {"a": Decimal("1.5")}])
    assert [each.type for each in result.content] == ["image", "text", "text"]
    assert json.loads(result.content[2].text) == {"a": "1.5"}  # type: ignore[union-attr]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("make", [Widget, lambda: [Widget()], lambda: Group.objects, lambda: {"a": Widget()}])
def test_any_other_object_is_refused_with_the_name_of_the_tool_and_the_supported_types(
    make: Callable[[], Any], is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(DEBUG=False):  # with DEBUG, the client sees the text of each exception
        result = _result(make, None, is_async)
    assert result.is_error
    assert "Widget" not in result.content[0].text  # type: ignore[union-attr]
    assert re.search(
        r"Tool 'tool' returned a value that cannot be sent: .*(Widget|Manager).*Supported: None, text", caplog.text
    )


def test_a_generator_over_the_orm_is_evaluated_in_the_thread() -> None:
    def names() -> Iterator[str]:
        for group in Group.objects.order_by("name"):
            yield group.name

    assert json.loads(text_of(returned(names))) == ["editors", "staff"]


def test_resources_and_prompts_are_converted_too() -> None:
    server = MCPServer("results")

    @server.resource("r://text")
    def lazy() -> Any:
        return gettext_lazy("Yes")

    @server.resource("r://blob/{name}")
    def blob(name: str) -> Any:
        return memoryview(name.encode())

    @server.resource("r://groups")
    def groups() -> Any:
        return Group.objects.order_by("name").values("name")

    @server.prompt()
    def lazy_prompt() -> Any:
        return gettext_lazy("Yes")

    @server.prompt()
    async def group_prompt() -> Any:
        return Group.objects.order_by("name")

    @server.prompt()
    def message_prompt() -> Any:
        return [{"role": "assistant", "content": gettext_lazy("Yes")}, {"count": 1}["count"]]

    async def work() -> None:
        async with Client(server) as session:
            (text,) = (await session.read_resource("r://text")).contents
            (blob,) = (await session.read_resource("r://blob/pdf")).contents
            (rows,) = (await session.read_resource("r://groups")).contents
            assert text.text == "Yes"  # type: ignore[union-attr]
            assert base64.b64decode(blob.blob) == b"pdf"  # type: ignore[union-attr]
            assert json.loads(rows.text) == [{"name": "editors"}, {"name": "staff"}]  # type: ignore[union-attr]
            said = {}
            for prompt in ("lazy_prompt", "group_prompt", "message_prompt"):
                messages = (await session.get_prompt(prompt)).messages
                said[prompt] = [(each.role, each.content.text) for each in messages]  # type: ignore[union-attr]
            assert said == {
                "lazy_prompt": [("user", "Yes")],
                "group_prompt": [("user", "editors"), ("user", "staff")],
                "message_prompt": [("assistant", "Yes"), ("user", "1")],
            }

    run(work)
