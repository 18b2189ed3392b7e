from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mcp_types import ToolAnnotations

    from mcp_serving.tools.permissions import Permission

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """One decorated function: which decorator, with which options."""

    kind: str
    function: Callable[..., Any]
    options: dict[str, Any]


class Registry:
    """Tools, resources and prompts without a server: what a reusable app offers.

    It has the decorators of ``MCPServer``; ``MCPServer.include`` binds what they have recorded, in order.

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
        **options: Any,
    ) -> Callable[[F], F]:
        """See ``MCPServer.read_tool``."""
        return self._record("read_tool", name=name, permission=permission, annotations=annotations, **options)

    def write_tool(
        self,
        name: str | None = None,
        *,
        confirm: str | Callable[..., Any] | None = None,
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """See ``MCPServer.write_tool``."""
        return self._record(
            "write_tool", name=name, confirm=confirm, permission=permission, annotations=annotations, **options
        )

    def tool(
        self, name: str | None = None, *, permission: Permission | None = None, **options: Any
    ) -> Callable[[F], F]:
        """See ``MCPServer.tool``."""
        return self._record("tool", name=name, permission=permission, **options)

    def resource(self, uri: str, *, permission: Permission | None = None, **options: Any) -> Callable[[F], F]:
        """See ``MCPServer.resource``."""
        return self._record("resource", uri=uri, permission=permission, **options)

    def prompt(
        self, name: str | None = None, *, permission: Permission | None = None, **options: Any
    ) -> Callable[[F], F]:
        """See ``MCPServer.prompt``."""
        return self._record("prompt", name=name, permission=permission, **options)

    def _record(self, kind: str, **options: Any) -> Callable[[F], F]:
        def decorator(function: F) -> F:
            self.declarations.append(Declaration(kind, function, options))
            return function

        return decorator
