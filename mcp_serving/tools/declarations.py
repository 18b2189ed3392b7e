"""What ``MCPServer`` and ``Registry`` both insist on, so that a mistake is found where it was made; without the SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from mcp_types import ToolAnnotations

Permission: TypeAlias = "str | Iterable[str] | Callable[[Any], Any]"
"""``"app.codename"``, several of these, or a callable (sync or async) that is given the user."""

Asked: TypeAlias = "tuple[str, ...] | Callable[[Any], Any]"
"""A permission that was checked."""


def checked(name: str, permission: Permission | None) -> Asked | None:
    """What ``name`` asks of its users; None where it asks for nothing.

    Raises:
        ValueError: a permission is not of the form ``app.codename``, or there is none in a list of them.
    """
    if permission is None or callable(permission):
        return permission
    names = (permission,) if isinstance(permission, str) else tuple(permission)
    if not names:
        raise ValueError(f"{name!r} asks for an empty list of permissions: leave permission out, or name one.")
    for each in names:
        app, _, codename = each.partition(".") if isinstance(each, str) else ("", "", "")
        if not (app and codename):
            raise ValueError(f"{name!r} asks for the permission {each!r}, which is not of the form 'app.codename'.")
    return names


def must_be_called(name: object, decorator: str) -> None:
    """Refuse ``@server.tool``, which hands the function over as a name."""
    if callable(name):
        example = "'shop://orders'" if decorator == "resource" else ""
        raise TypeError(f"Write @{decorator}({example}), not @{decorator}: the decorator has to be called.")


def must_be_uri(uri: str) -> None:
    """Refuse what is no URI template.

    Raises:
        ValueError: says what is wrong with it.
    """
    # The SDK is loaded where there are resources, by which time the server is wanted anyway.
    from mcp.shared.uri_template import UriTemplate

    UriTemplate.parse(uri)


def name_of(function: Callable[..., Any], name: str | None, kind: str) -> str:
    """What a tool or prompt is called: the name that was given, else the function's."""
    called = name or getattr(function, "__name__", None)
    if called is None:
        raise ValueError(f"{function!r} has no __name__ to call the {kind} by: give it one, @{kind}('its_name').")
    return str(called)


def must_only_read(name: str, annotations: ToolAnnotations | None) -> None:
    if annotations is not None and (annotations.read_only_hint is not True or annotations.destructive_hint):
        raise ValueError(
            f"The read tool {name!r} has read_only_hint={annotations.read_only_hint} and "
            f"destructive_hint={annotations.destructive_hint} in its annotations: they have to say "
            "read_only_hint=True and nothing of destruction, or it has to be a write_tool."
        )


def must_write(name: str, annotations: ToolAnnotations | None) -> None:
    if annotations is not None and annotations.read_only_hint:
        raise ValueError(
            f"The write tool {name!r} has read_only_hint=True in its annotations: leave that out, or make it a "
            "read_tool."
        )


def taken(kind: str, name: str) -> str:
    return f"There is a {kind} {name!r} already: give one of the two another name."
