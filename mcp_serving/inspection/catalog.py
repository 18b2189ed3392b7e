"""What a server offers to the user of a client: tools, resources, resource templates and prompts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND, Prompt, Resource, ResourceTemplate, Tool

from mcp_serving import sdk
from mcp_serving.tools.server import MCPServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import PaginatedResult

Declared: TypeAlias = "Tool | Resource | ResourceTemplate | Prompt"

MOST_PAGES = 100
"""A server whose list never ends cannot keep the caller waiting for ever."""


@dataclass(frozen=True)
class Offered:
    """One thing that a server offers.

    Args:
        kind: "tool", "resource", "template" or "prompt".
        declared: what the server tells its clients about it.
    """

    kind: str
    declared: Declared

    @property
    def name(self) -> str:
        """What a client asks for: the name of a tool or prompt, the URI of a resource or template."""
        if isinstance(self.declared, Resource):
            return str(self.declared.uri)
        if isinstance(self.declared, ResourceTemplate):
            return self.declared.uri_template
        return self.declared.name

    @property
    def title(self) -> str:
        """The title for people, or the name."""
        annotations = self.declared.annotations if isinstance(self.declared, Tool) else None
        by_name = self.declared.name if isinstance(self.declared, Resource | ResourceTemplate) else None
        return self.declared.title or (annotations.title if annotations else None) or by_name or self.name

    @property
    def summary(self) -> str:
        """The first paragraph of the description in one line; empty without a description."""
        return " ".join((self.declared.description or "").strip().split("\n\n")[0].split())

    def as_json(self) -> dict[str, Any]:
        """What the server tells its clients, as JSON."""
        return self.declared.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True)
class Catalog:
    """Everything that a server offers to one user, in the order in which the server lists it."""

    tools: list[Offered]
    resources: list[Offered]
    templates: list[Offered]
    prompts: list[Offered]

    def all(self) -> list[Offered]:
        return [*self.tools, *self.resources, *self.templates, *self.prompts]

    def named(self, name: str) -> list[Offered]:
        """Everything with this name or URI: a tool and a prompt may share a name."""
        return [offered for offered in self.all() if offered.name == name]


async def catalog_of(client: Client) -> Catalog:
    """List everything that the server of a client offers to the user of the client.

    Raises:
        MCPError: the server refused to list something.
    """
    return Catalog(
        tools=[Offered("tool", tool) for tool in await _all_pages(client.list_tools, "tools")],
        resources=[Offered("resource", each) for each in await _all_pages(client.list_resources, "resources")],
        templates=[
            Offered("template", each) for each in await _all_pages(client.list_resource_templates, "resource_templates")
        ],
        prompts=[Offered("prompt", prompt) for prompt in await _all_pages(client.list_prompts, "prompts")],
    )


async def _all_pages(fetch: Callable[..., Awaitable[PaginatedResult]], field: str) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        try:
            page = await fetch(cursor=cursor)
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND:  # a server without prompts need not know how to list them
                return found
            raise
        found += getattr(page, field)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


@dataclass(frozen=True)
class Declaration:
    """What only the process of the server knows: clients are not told.

    Args:
        permission: what the user needs, in words; None if everybody may use it.
        scopes: what a token needs.
        asks_first: whether the user is asked before it acts.
        file, line: where its function is; None where it has none.
    """

    permission: str | None = None
    scopes: tuple[str, ...] = ()
    asks_first: bool = False
    file: Path | None = None
    line: int | None = None

    @property
    def source(self) -> str | None:
        """``file:line``, relative to the current directory where it is below it."""
        if self.file is None:
            return None
        here = Path.cwd()
        shown = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        return f"{shown}:{self.line}"


def declaration_of(mcp: sdk.SDKServer, offered: Offered) -> Declaration:
    """How a server of this process declares something that it offers."""
    file, line = _place(sdk.function_of(mcp, offered.kind, offered.name))
    if not isinstance(mcp, MCPServer):
        return Declaration(file=file, line=line)
    return Declaration(
        permission=_in_words(mcp.permission_of(offered.kind, offered.name)),
        scopes=mcp.scopes.required("resource" if offered.kind == "template" else offered.kind, offered.name),
        asks_first=offered.kind == "tool" and offered.name in mcp.write_tools,
        file=file,
        line=line,
    )


def _in_words(permission: tuple[str, ...] | Callable[[Any], Any] | None) -> str | None:
    if permission is None:
        return None
    if callable(permission):
        name = getattr(permission, "__qualname__", type(permission).__qualname__)
        return f"decided by {getattr(permission, '__module__', '')}.{name}"
    return " and ".join(permission)


def _place(function: Callable[..., Any] | None) -> tuple[Path | None, int | None]:
    """The file and the first line of a function, without the wrappers around it."""
    if function is None:
        return None, None
    function = inspect.unwrap(function)
    try:
        file = inspect.getsourcefile(function)
        _, line = inspect.getsourcelines(function)
    except (OSError, TypeError):  # made at run time, or written in C
        return None, None
    return (Path(file), line) if file else (None, None)
