"""What a write tool asks the user: read and checked where the tool is declared, without the SDK."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Confirm: TypeAlias = "str | Callable[..., Any]"
"""A format string over the tool's arguments, or a callable (sync or async) that takes some of them by name."""


# Parameters that the gate adds to a tool; the SDK fills them, clients do not see them.
ASKABLE = "askable_"
ANSWER = "confirmation_"


def must_stand_behind_a_gate(function: Callable[..., Any], name: str, confirm: Confirm) -> None:
    """Refuse a write tool that cannot ask its question.

    Raises:
        TypeError: the question is neither text nor callable.
        ValueError: it speaks of an argument that the tool does not have, or the tool has one that is not
            given by its name, or that is called like one of the gate's.
    """
    tool = inspect.signature(function)
    for parameter in tool.parameters.values():
        if parameter.name in (ASKABLE, ANSWER):
            raise ValueError(
                f"The gate of tool {name!r} needs the name {parameter.name!r} itself: rename the argument."
            )
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(
                f"Tool {name!r} has the parameter {str(parameter)!r}, which is {parameter.kind.description}: a tool "
                "that asks first is given each of its arguments by name."
            )
    spoken_of(tool, name, confirm)


def spoken_of(tool: inspect.Signature, name: str, confirm: Confirm) -> list[str]:
    """The arguments that the question of a tool speaks of, once each.

    Raises:
        TypeError: the question is neither text nor callable.
        ValueError: it speaks of an argument that the tool does not have.
    """
    if callable(confirm):
        wanted = list(_parameters_to_fill(confirm, tool))
    elif isinstance(confirm, str):
        try:
            wanted = list(_fields(confirm))
        except ValueError as error:
            raise ValueError(f"The question of tool {name!r} is no format string: {error} in {confirm!r}.") from error
    else:
        raise TypeError(
            f"The question of tool {name!r} is {confirm!r}: confirm has to be a format string such as "
            "'Cancel order {number}?', or a callable that returns the text."
        )
    unknown = [each for each in wanted if each not in tool.parameters]
    if unknown:
        raise ValueError(
            f"The question of tool {name!r} speaks of {', '.join(map(repr, unknown))}, "
            f"but its arguments are {', '.join(map(repr, tool.parameters)) or 'none'}."
        )
    return list(dict.fromkeys(wanted))


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
