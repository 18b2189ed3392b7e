"""The question of a write tool, checked where the tool is declared; the SDK is not imported."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from mcp_serving.threads import is_async

Confirm: TypeAlias = "str | Callable[..., Any]"
"""A format string over the tool's arguments, or a callable (sync or async) that takes some of them by name."""


# Parameters that are added to a write tool. The SDK fills them; clients do not see them.
CAN_ASK = "can_ask_"
ANSWER = "confirmation_"


def check_write_tool(function: Callable[..., Any], name: str, confirm: Confirm, *, preview: bool = False) -> None:
    """Refuse a write tool that could not ask its question.

    Raises:
        TypeError: the question is neither text nor callable, or an async function has a preview.
        ValueError: the question names an argument that the tool does not have. Or the tool has an argument that
            cannot be passed by name, or whose name is reserved.
    """
    if preview and is_async(function):
        raise TypeError(
            f"Write tool {name!r} is async and has preview=True; a preview needs a sync function, because Django "
            "has no transactions for async code. Write it with def, or remove preview=True."
        )
    tool = inspect.signature(function)
    for parameter in tool.parameters.values():
        if parameter.name in (CAN_ASK, ANSWER):
            raise ValueError(
                f"Write tool {name!r} has the argument {parameter.name!r}, a reserved name: rename the argument."
            )
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(
                f"Write tool {name!r} has the parameter {str(parameter)!r}, which is {parameter.kind.description}: "
                "a write tool takes each argument by its name."
            )
    arguments_in_question(tool, name, confirm)


def arguments_in_question(tool: inspect.Signature, name: str, confirm: Confirm) -> list[str]:
    """The arguments of the tool that its question uses, once each.

    Raises:
        TypeError: the question is neither text nor callable.
        ValueError: the question uses an argument that the tool does not have.
    """
    if callable(confirm):
        used = list(_parameters_to_fill(confirm, tool))
    elif isinstance(confirm, str):
        try:
            used = list(_fields(confirm))
        except ValueError as error:
            raise ValueError(
                f"The question of tool {name!r} is not a format string: {error} in {confirm!r}."
            ) from error
    else:
        raise TypeError(
            f"The question of tool {name!r} is {confirm!r}: confirm has to be a format string such as "
            "'Cancel order {number}?', or a callable that returns the text."
        )
    unknown = [each for each in used if each not in tool.parameters]
    if unknown:
        raise ValueError(
            f"The question of tool {name!r} uses {', '.join(map(repr, unknown))}, "
            f"but the tool's arguments are {', '.join(map(repr, tool.parameters)) or 'none'}."
        )
    return list(dict.fromkeys(used))


def _parameters_to_fill(confirm: Callable[..., Any], tool: inspect.Signature) -> Iterator[str]:
    for parameter in inspect.signature(confirm).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from tool.parameters
        elif parameter.name in tool.parameters or parameter.default is inspect.Parameter.empty:
            yield parameter.name


def _fields(text: str) -> Iterator[str]:
    """The arguments in a format string: ``order`` in ``{order.number}``, ``{order[0]}`` and ``{x:{order}}``."""
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            yield field.split(".")[0].split("[")[0]
            yield from _fields(spec or "")
