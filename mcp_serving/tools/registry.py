from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from mcp_serving.tools.declarations import (
    Permission,
    checked,
    must_be_called,
    must_be_uri,
    must_only_read,
    must_write,
    name_of,
    taken,
)
from mcp_serving.tools.question import Confirm, must_stand_behind_a_gate

if TYPE_CHECKING:
    from mcp.server.mcpserver.resources import ResourceSecurity
    from mcp_types import Annotations, Icon, ToolAnnotations

F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(TypedDict, total=False):
    """What the SDK's ``tool`` takes beside a name and annotations."""

    title: str | None
    description: str | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    structured_output: bool | None


class ResourceOptions(TypedDict, total=False):
    """What the SDK's ``resource`` takes beside a URI."""

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    icons: list[Icon] | None
    annotations: Annotations | None
    meta: dict[str, Any] | None
    security: ResourceSecurity | None


class PromptOptions(TypedDict, total=False):
    """What the SDK's ``prompt`` takes beside a name."""

    title: str | None
    description: str | None
    icons: list[Icon] | None


@dataclass(frozen=True)
class Declaration:
    """One decorated function: which decorator, with which options."""

    decorator: str
    name: str
    function: Callable[..., Any]
    options: dict[str, Any]

    @property
    def kind(self) -> str:
        """Within which its name is taken once: tool, resource or prompt."""
        return "tool" if self.decorator.endswith("tool") else self.decorator


class Registry:
    """Tools, resources and prompts without a server: what a reusable app offers.

    It has the decorators of ``MCPServer``; ``MCPServer.include`` binds what they have recorded, in order,
    in as many servers as want it.

    Example:
        >>> registry = Registry()
        >>> @registry.read_tool()
        ... def list_orders() -> list[str]: ...
        >>> server.include(registry, write=False, prefix="shop_")
    """

    def __init__(self) -> None:
        self.declarations: list[Declaration] = []

    def read_tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.read_tool``."""
        must_be_called(name, "read_tool")

        def decorator(function: F) -> F:
            must_only_read(name_of(function, name, "tool"), annotations)
            return self._record("read_tool", name, function, permission=permission, annotations=annotations, **options)

        return decorator

    def write_tool(
        self,
        name: str | None = None,
        *,
        confirm: Confirm,
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.write_tool``."""
        must_be_called(name, "write_tool")

        def decorator(function: F) -> F:
            called = name_of(function, name, "tool")
            must_write(called, annotations)
            must_stand_behind_a_gate(function, called, confirm)
            return self._record(
                "write_tool",
                name,
                function,
                confirm=confirm,
                permission=permission,
                annotations=annotations,
                **options,
            )

        return decorator

    def tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.tool``."""
        must_be_called(name, "tool")
        return lambda function: self._record(
            "tool", name, function, permission=permission, annotations=annotations, **options
        )

    def resource(
        self, uri: str, *, permission: Permission | None = None, **options: Unpack[ResourceOptions]
    ) -> Callable[[F], F]:
        """See ``MCPServer.resource``."""
        must_be_called(uri, "resource")
        must_be_uri(uri)
        return lambda function: self._record("resource", uri, function, permission=permission, **options)

    def prompt(
        self, name: str | None = None, *, permission: Permission | None = None, **options: Unpack[PromptOptions]
    ) -> Callable[[F], F]:
        """See ``MCPServer.prompt``."""
        must_be_called(name, "prompt")
        return lambda function: self._record("prompt", name, function, permission=permission, **options)

    def _record(
        self, decorator: str, name: str | None, function: F, /, *, permission: Permission | None, **options: Any
    ) -> F:
        called = name_of(function, name, decorator)
        declaration = Declaration(decorator, called, function, {"permission": checked(called, permission), **options})
        if any((other.kind, other.name) == (declaration.kind, called) for other in self.declarations):
            raise ValueError(taken(declaration.kind, called))
        self.declarations.append(declaration)
        return function
