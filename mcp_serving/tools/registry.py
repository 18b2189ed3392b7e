"""``Registry``: the declarations of a reusable app, for servers to include."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from mcp_serving.rate_limits.rate import valid_rate
from mcp_serving.tools.declarations import (
    Confirm,
    Permission,
    already_declared,
    check_is_called,
    check_read_annotations,
    check_uri_template,
    check_write_annotations,
    check_write_tool,
    name_of,
    validate_permission,
    validate_scopes,
)

if TYPE_CHECKING:
    from mcp.server.mcpserver.resources import ResourceSecurity
    from mcp_types import Annotations, Icon, ToolAnnotations

F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(TypedDict, total=False):
    """The options of ``tool`` other than its name, permission, scopes and annotations."""

    title: str | None
    description: str | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    structured_output: bool | None
    rate: str | None
    record_arguments: bool | Iterable[str]


class ResourceOptions(TypedDict, total=False):
    """The options of the SDK's ``resource`` other than its URI."""

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    icons: list[Icon] | None
    annotations: Annotations | None
    meta: dict[str, Any] | None
    security: ResourceSecurity | None


class PromptOptions(TypedDict, total=False):
    """The options of the SDK's ``prompt`` other than its name."""

    title: str | None
    description: str | None
    icons: list[Icon] | None


@dataclass(frozen=True)
class Declaration:
    """A decorated function, the name of the decorator and its options."""

    decorator: str
    name: str
    function: Callable[..., Any]
    options: dict[str, Any]

    @property
    def kind(self) -> str:
        """Tool, resource or prompt: its name is unique within its kind."""
        return "tool" if self.decorator.endswith("tool") else self.decorator


class Registry:
    """The tools, resources and prompts of a reusable app, which belong to no server yet.

    It has the decorators of ``MCPServer``. ``MCPServer.include`` declares on a server what they have recorded, in
    order; several servers may include the same registry.

    Example:
        >>> registry = Registry()
        >>> @registry.read_tool()
        ... def list_orders() -> list[str]: ...
        >>> server.include(registry, write=False, prefix="shop_")
    """

    def __init__(self) -> None:
        self.declarations: list[Declaration] = []
        self.is_included = False
        """Whether a server has included it."""

    def read_tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.read_tool``."""
        check_is_called(name, "read_tool")

        def decorator(function: F) -> F:
            check_read_annotations(name_of(function, name, "tool"), annotations)
            return self._record(
                "read_tool", name, function, permission=permission, scopes=scopes, annotations=annotations, **options
            )

        return decorator

    def write_tool(
        self,
        name: str | None = None,
        *,
        confirm: Confirm,
        preview: bool = False,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.write_tool``."""
        check_is_called(name, "write_tool")

        def decorator(function: F) -> F:
            tool_name = name_of(function, name, "tool")
            check_write_annotations(tool_name, annotations)
            check_write_tool(function, tool_name, confirm, preview=preview)
            return self._record(
                "write_tool",
                name,
                function,
                confirm=confirm,
                preview=preview,
                permission=permission,
                scopes=scopes,
                annotations=annotations,
                **options,
            )

        return decorator

    def tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.tool``."""
        check_is_called(name, "tool")
        return lambda function: self._record(
            "tool", name, function, permission=permission, scopes=scopes, annotations=annotations, **options
        )

    def resource(
        self,
        uri: str,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        **options: Unpack[ResourceOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.resource``."""
        check_is_called(uri, "resource")
        check_uri_template(uri)
        return lambda function: self._record("resource", uri, function, permission=permission, scopes=scopes, **options)

    def prompt(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        **options: Unpack[PromptOptions],
    ) -> Callable[[F], F]:
        """See ``MCPServer.prompt``."""
        check_is_called(name, "prompt")
        return lambda function: self._record("prompt", name, function, permission=permission, scopes=scopes, **options)

    def _record(
        self,
        decorator: str,
        name: str | None,
        function: F,
        /,
        *,
        permission: Permission | None,
        scopes: Iterable[str],
        **options: Any,
    ) -> F:
        name = name_of(function, name, decorator)
        options["permission"] = validate_permission(name, permission)
        options["scopes"] = validate_scopes(name, scopes)
        valid_rate(f"{decorator} {name!r}", options.get("rate"))
        declaration = Declaration(decorator, name, function, options)
        if any((other.kind, other.name) == (declaration.kind, name) for other in self.declarations):
            raise ValueError(already_declared(declaration.kind, name))
        self.declarations.append(declaration)
        return function
