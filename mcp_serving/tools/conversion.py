"""Values between Django and MCP: results become JSON, and the errors of invalid arguments are bounded.

A result may be lazy: a ``QuerySet``, a translated text, a model whose ``__str__`` follows a foreign key. So it is
converted where the function ran, in its thread and its transaction.
"""

from __future__ import annotations

import base64
import functools
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import pydantic_core
from asgiref.sync import sync_to_async
from django.db.models import Model, QuerySet
from django.db.models.fields.files import FieldFile
from django.db.models.query import RawQuerySet
from django.utils.functional import LazyObject, Promise
from mcp.server.mcpserver.prompts.base import Message
from mcp.server.mcpserver.resources import Resource
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.server.mcpserver.utilities.types import Audio, Image
from mcp_types import CallToolResult, ContentBlock, InputRequiredResult, TextContent
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaValidator

from mcp_serving import sdk
from mcp_serving.threads import is_async
from mcp_serving.validation_errors import bounded, fail_fast_validator
from mcp_serving.web_servers.request_body import MAX_VALUES, has_more_values

SUPPORTED = (
    "None, text, numbers, dates and times, UUID, enum, bytes, model instances, QuerySets, file fields, pydantic "
    "models, dataclasses, and dicts, lists, tuples and sets of these"
)

Convert = Callable[[Any], Any]

_PLAIN = frozenset({type(None), bool, int, float, str})
_BUILTIN = _PLAIN | {bytes, dict}
_FINAL = (CallToolResult, InputRequiredResult)
_BLOCKS = get_args(ContentBlock)
_CONTENT = (*_BLOCKS, Image, Audio)


# Django's values as JSON


def plain(value: Any, *, keep_models: bool = False) -> Any:
    """``value`` without the types of Django that pydantic cannot serialise.

    Args:
        keep_models: leaves model instances as they are, for a pydantic model that reads their attributes.
    """
    if type(value) in _PLAIN:
        return value
    convert = functools.partial(plain, keep_models=keep_models)
    match value:
        case Promise():
            return str(value)
        case None | bool() | int() | float() | str() | BaseModel() | Image() | Audio() | Resource():
            return value
        case Model():
            return value if keep_models else str(value)
        case FieldFile():
            return value.name or None
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Mapping():
            return {convert(key): convert(each) for key, each in value.items()}
        case tuple() if hasattr(value, "_make"):  # a named tuple
            return value._make(map(convert, value))
        case list() | tuple() | set() | frozenset() | deque() | QuerySet() | RawQuerySet() | Iterator():
            return [convert(each) for each in value]
    return value


def _may_query(value: Any) -> bool:
    """Whether ``plain(value)`` may query the database, and so needs a thread."""
    if type(value) in _PLAIN:
        return False
    if issubclass(type(value), LazyObject | Promise):  # isinstance() would evaluate it
        return True
    match value:
        case None | str() | int() | float() | bytes() | BaseModel():
            return False
        case Mapping():
            return any(map(_may_query, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(_may_query, value))
    return isinstance(value, Model | QuerySet | RawQuerySet | Iterator)


def _is_one_of(models: tuple[Any, ...], value: Any) -> bool:
    """``isinstance()``, which runs code of pydantic for each model, without that for the results of most tools."""
    return type(value) not in _BUILTIN and isinstance(value, models)


def _text(value: Any) -> str:
    """A value that JSON has as a string, such as a date, without its quotation marks; any other value as JSON."""
    if isinstance(value, str):
        return value
    text = pydantic_core.to_json(value, indent=2)
    return str(pydantic_core.from_json(text)) if text.startswith(b'"') else text.decode()


# Results of resources and prompts


def resource_contents(value: Any) -> Any:
    """The result of a resource in a form that the SDK sends unchanged: text or bytes."""
    match value:
        case str() | bytes() | Resource() | InputRequiredResult():
            return value
        case bytearray() | memoryview():
            return bytes(value)
    return _text(plain(value))


def prompt_messages(value: Any) -> Any:
    """The result of a prompt in a form that the SDK sends unchanged: a message, or a list of messages."""
    if isinstance(value, InputRequiredResult):
        return value
    value = plain(value)
    return list(map(_message, value)) if isinstance(value, list) else _message(value)


def _message(value: Any) -> Any:
    return value if isinstance(value, str | dict | Message | ContentBlock | Image | Audio) else _text(value)


# Results of tools


@dataclass(slots=True)
class _Converted:
    """A result that was converted in the tool's thread."""

    result: CallToolResult | InputRequiredResult


@dataclass(slots=True)
class _OutputAdapter:
    """The return type of a tool, and its validator."""

    model: Any
    adapter: TypeAdapter[Any]


class ToolMetadata(FuncMetadata):
    """The SDK's description of a tool, which converts results of Django's types, and bounds the errors in arguments."""

    # Cached properties: a private attribute of pydantic is slow to read.

    @cached_property
    def _validator(self) -> SchemaValidator:
        return fail_fast_validator(self.arg_model)

    @cached_property
    def _current_adapter(self) -> _OutputAdapter:
        return _OutputAdapter(self.output_model, sdk.output_adapter(self))

    @classmethod
    def of(cls, metadata: FuncMetadata) -> ToolMetadata:
        """The same description."""
        return cls(
            arg_model=metadata.arg_model,
            output_schema=metadata.output_schema,
            output_model=metadata.output_model,
            wrap_output=metadata.wrap_output,
        )

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        arguments = self.pre_parse_json(arguments_to_validate)
        try:
            validated: ArgModelBase = self._validator.validate_python(arguments)
        except ValidationError as error:
            raise bounded(error) from None
        return validated.model_dump_one_level()

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        """The arguments, after JSON in strings is parsed. A string with too many JSON values stays a string."""
        lengths = [len(value) for value in data.values() if isinstance(value, str)]
        limit = MAX_VALUES // max(len(lengths), 1)
        if not lengths or max(lengths) <= limit:  # most calls
            return super().pre_parse_json(data)
        unparsed = {
            name: value
            for name, value in data.items()
            if isinstance(value, str) and len(value) > limit and has_more_values(value.encode(errors="replace"), limit)
        }
        return super().pre_parse_json({name: data[name] for name in data.keys() - unparsed}) | unparsed

    def convert_result(self, result: Any) -> CallToolResult | InputRequiredResult:
        return result.result if isinstance(result, _Converted) else super().convert_result(result)

    def convert_here(self, result: Any) -> _Converted:
        """Convert the result of a tool, in its thread; ``convert_result`` returns it later, in the event loop."""
        if _is_one_of(_FINAL, result):
            return _Converted(super().convert_result(result))
        if self.output_model is None or self.output_schema is None:
            return _Converted(CallToolResult(content=_content(plain(result))))
        kept = plain(result, keep_models=True)
        structured = self._structured(kept)
        source = structured["result"] if self.wrap_output else structured
        content = _content(kept if _has_content(kept) else source)
        return _Converted(CallToolResult(content=content, structured_content=structured))

    def _structured(self, value: Any) -> dict[str, Any]:
        """The structured content, as the return type of the tool describes it."""
        try:
            return self._validated(value)
        except (ValidationError, PydanticSerializationError):
            return self._validated(plain(value))  # the return type is str, or says nothing of models

    def _validated(self, value: Any) -> dict[str, Any]:
        last = self._current_adapter
        if last.model is not self.output_model:  # the field may be assigned anew
            last.model, last.adapter = self.output_model, sdk.output_adapter(self)
        adapter = last.adapter
        if self.wrap_output:
            value = {"result": value}
        validated = adapter.validate_python(value, by_alias=True, by_name=True, from_attributes=True)
        if isinstance(validated, BaseModel):  # a subclass of the declared model keeps its own fields
            return validated.model_dump(mode="json", by_alias=True)
        structured: dict[str, Any] = adapter.dump_python(validated, mode="json", by_alias=True)
        return structured


def _has_content(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_content, value))
    return _is_one_of(_CONTENT, value)


def _content(value: Any) -> list[ContentBlock]:
    """The content blocks of a result: its images, audio and other blocks, or else one block with its text or JSON."""
    match value:
        case None:
            return []
        case Image():
            return [value.to_image_content()]
        case Audio():
            return [value.to_audio_content()]
        case list() if _has_content(value):
            return [block for each in value for block in _content(each)]
    return [value] if _is_one_of(_BLOCKS, value) else [TextContent(type="text", text=_text(value))]


# Where results are converted


def with_converted_result(function: Callable[..., Any], convert: Convert, name: str) -> Callable[..., Any]:
    """``function``, whose result is converted in the thread in which the function ran.

    Args:
        function: sync or async.
        convert: makes the result.
        name: of the tool, resource or prompt, for an error.
    """

    def checked(result: Any) -> Any:
        try:
            return convert(result)
        except PydanticSerializationError as error:
            raise TypeError(f"{name} returned a value that cannot be sent: {error}. Supported: {SUPPORTED}.") from error

    async def later(result: Awaitable[Any]) -> Any:
        value = await result
        return await sync_to_async(checked)(value) if _may_query(value) else checked(value)

    if is_async(function):

        @functools.wraps(function)
        async def async_call(*args: Any, **kwargs: Any) -> Any:
            return await later(function(*args, **kwargs))

        return async_call

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return later(result) if inspect.isawaitable(result) else checked(result)

    return call
