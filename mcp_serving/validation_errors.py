"""Validation errors of a bounded size.

pydantic reports an error for each invalid value of a request, and formats all of them: a body of one megabyte can
have 300,000 errors of 70 megabytes. If the type is a list of a union of models, there can be millions of errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

LISTED = 10
"""How many errors are reported."""

COUNTED = 1000
"""If there are more errors, none is listed: pydantic can only make the details of all, which blocks the event loop."""

LONGEST_TEXT = 500
"""Characters of the message of an error, and of each name in its location. The names may be the client's."""


_COLLECTIONS = ("list", "tuple", "set", "frozenset", "deque", "dict", "ordered-dict", "counter")
_NO_SCHEMAS = ("metadata", "default", "serialization", "config", "expected")


def fail_fast_validator(model: type[BaseModel]) -> SchemaValidator:
    """A validator of ``model`` that stops at the first invalid item of a list or dict, as pydantic's ``FailFast`` does.

    ``FailFast`` applies to one list. This validator stops in each collection, also in nested models.
    """
    try:
        # Otherwise pydantic uses the validators that nested models have already. Before pydantic 2.13, it always does.
        return SchemaValidator(_fail_fast(model.__pydantic_core_schema__), None, _use_prebuilt=False)
    except TypeError:
        return model.__pydantic_validator__  # type: ignore[return-value]


def _fail_fast(schema: Any) -> Any:
    """A copy of a core schema of pydantic, or of a part of one."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_fail_fast, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    is_schema = isinstance(kind, str)  # otherwise it maps names of fields to schemas
    copy = {key: part if is_schema and key in _NO_SCHEMAS else _fail_fast(part) for key, part in schema.items()}
    return {**copy, "fail_fast": True} if is_schema and kind in _COLLECTIONS else copy


def bounded(error: ValidationError) -> ValidationError:
    """The same error, with at most ten details."""
    count = error.error_count()
    if count > COUNTED:
        lines = [_line("too_many_errors", "The errors are not listed, because there are more than 1000.", (), None)]
        return ValidationError.from_exception_data(f"{error.title} ({count} errors)", lines)
    details = error.errors(include_url=False, include_context=False)
    lines = [_line(each["type"], _message(each), _location(each), each["input"]) for each in details[:LISTED]]
    title = error.title if count <= LISTED else f"{error.title} (the first {LISTED} of {count})"
    return ValidationError.from_exception_data(title, lines)


def summary(error: ValidationError) -> str:
    """The first ten errors in one line."""
    listed = bounded(error).errors(include_url=False, include_context=False, include_input=False)
    text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in listed)
    more = error.error_count() - len(listed)
    return f"{text}; and {more} more" if more > 0 else text


def _line(kind: str, message: str, location: tuple[int | str, ...], value: object) -> InitErrorDetails:
    # Braces are placeholders only if there is a context.
    return InitErrorDetails(type=PydanticCustomError(kind, message), loc=location, input=value)


def _message(error: ErrorDetails) -> str:
    return error["msg"][:LONGEST_TEXT]


def _location(error: ErrorDetails) -> tuple[int | str, ...]:
    return tuple(part[:LONGEST_TEXT] if isinstance(part, str) else part for part in error["loc"][:LISTED])
