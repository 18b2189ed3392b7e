"""Checks of a declaration that ``MCPServer`` and ``Registry`` share; the SDK is not imported.

Both raise a mistake at the decorator, where the developer can see it.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp_serving.threads import is_async

if TYPE_CHECKING:
    from mcp_types import ToolAnnotations

_SCOPE = re.compile(r"[!#-\[\]-~]+")

Permission: TypeAlias = "str | Iterable[str] | Callable[[Any], Any]"
"""``"app.codename"``, several of these, or a callable (sync or async) that is given the user."""

ValidPermission: TypeAlias = "tuple[str, ...] | Callable[[Any], Any]"
"""The result of ``validate_permission``."""


def validate_permission(name: str, permission: Permission | None) -> ValidPermission | None:
    """The permission in one form; None if every user may use ``name``.

    Raises:
        ValueError: a permission is not of the form ``app.codename``, or the list of permissions is empty.
    """
    if permission is None or callable(permission):
        return permission
    permissions = (permission,) if isinstance(permission, str) else tuple(permission)
    if not permissions:
        raise ValueError(f"{name!r} has permission=[]: leave permission out, or name at least one permission.")
    for each in permissions:
        app, _, codename = each.partition(".") if isinstance(each, str) else ("", "", "")
        if not (app and codename):
            raise ValueError(f"{name!r} has the permission {each!r}, which is not of the form 'app.codename'.")
    return permissions


def validate_scopes(name: str, scopes: Iterable[str]) -> tuple[str, ...]:
    """The scopes as a tuple.

    Raises:
        TypeError: the scopes are one text.
        ValueError: a scope is not of the form that OAuth allows (RFC 6749, section 3.3).
    """
    if isinstance(scopes, str):
        raise TypeError(f"{name!r} has scopes={scopes!r}; it has to be a list of scopes.")
    for each in scopes:
        if not (isinstance(each, str) and _SCOPE.fullmatch(each)):
            raise ValueError(
                f"{name!r} has the scope {each!r}; a scope has ASCII characters without spaces, quotation marks and "
                "backslashes."
            )
    return tuple(scopes)


def validate_recorded(name: str, record_arguments: bool | Iterable[str], known: Iterable[str]) -> frozenset[str]:
    """The arguments of a tool that may be stored.

    Args:
        name: the name of the tool.
        record_arguments: True for all, False for none, or the names of the arguments that are left out.
        known: the arguments of the tool.

    Raises:
        TypeError: ``record_arguments`` is a string.
        ValueError: the tool has no such argument. A misspelt name would store an argument that must be left out.
    """
    if isinstance(record_arguments, bool):
        return frozenset(known if record_arguments else ())
    if isinstance(record_arguments, str):
        raise TypeError(f"{name!r} has record_arguments={record_arguments!r}; it has to be True, False or a list.")
    known, left_out = frozenset(known), frozenset(record_arguments)
    if unknown := sorted(left_out - known):
        raise ValueError(
            f"{name!r} has record_arguments with {unknown[0]!r}, which is not one of its arguments: "
            f"{', '.join(map(repr, sorted(known)))}."
        )
    return known - left_out


def check_is_called(name: object, decorator: str) -> None:
    """Refuse ``@server.tool`` without parentheses, which passes the function as the name.

    Raises:
        TypeError: the name is a function.
    """
    if callable(name):
        example = "'shop://orders'" if decorator == "resource" else ""
        raise TypeError(f"Write @{decorator}({example}), not @{decorator}: the decorator has to be called.")


def check_uri_template(uri: str) -> None:
    """Refuse an invalid URI template.

    Raises:
        ValueError: says what is wrong with it.
    """
    # Only a resource imports the SDK: a Registry of tools alone is imported without it.
    from mcp.shared.uri_template import UriTemplate

    UriTemplate.parse(uri)


def name_of(function: Callable[..., Any], name: str | None, kind: str) -> str:
    """The name of a tool or prompt: the given name, or else the function's.

    Raises:
        ValueError: there is neither.
    """
    found = name or getattr(function, "__name__", None)
    if found is None:
        raise ValueError(f"{function!r} has no __name__ that could name the {kind}: write @{kind}('its_name').")
    return str(found)


def check_read_annotations(name: str, annotations: ToolAnnotations | None) -> None:
    """Refuse annotations that contradict a read tool.

    Raises:
        ValueError: they do not say that the tool only reads.
    """
    if annotations is not None and (annotations.read_only_hint is not True or annotations.destructive_hint):
        raise ValueError(
            f"The annotations of the read tool {name!r} have read_only_hint={annotations.read_only_hint} and "
            f"destructive_hint={annotations.destructive_hint}: set read_only_hint=True and leave destructive_hint "
            "out, or use write_tool."
        )


def check_write_annotations(name: str, annotations: ToolAnnotations | None) -> None:
    """Refuse annotations that contradict a write tool.

    Raises:
        ValueError: they say that the tool only reads.
    """
    if annotations is not None and annotations.read_only_hint:
        raise ValueError(
            f"The annotations of the write tool {name!r} have read_only_hint=True: leave it out, or use read_tool."
        )


def already_declared(kind: str, name: str) -> str:
    """The error message for a name that is used twice."""
    return f"There is a {kind} {name!r} already: give one of the two another name."


# The question of a write tool

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
