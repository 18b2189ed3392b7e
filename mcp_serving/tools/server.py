from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mcp.server.lowlevel.server import LifespanResultT
from mcp.server.mcpserver import MCPServer as SDKMCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError, UnexpectedToolError
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import FunctionResource, Resource
from mcp_types import CallToolResult, GetPromptResult, InputRequiredResult, ResourceTemplate, Tool, ToolAnnotations
from mcp_types import Prompt as MCPPrompt
from mcp_types import Resource as MCPResource

from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.tools import request_state
from mcp_serving.tools.gate import gated
from mcp_serving.tools.permissions import Permission, Permissions
from mcp_serving.tools.registry import Registry
from mcp_serving.tools.threads import DjangoThreads, thread_of_its_own
from mcp_serving.users import current_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.mcpserver import Context
    from mcp_types import Icon

F = TypeVar("F", bound=Callable[..., Any])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)


class MCPServer(SDKMCPServer[LifespanResultT]):
    """The SDK's ``MCPServer`` with Django's ways inside; all that the SDK's offers still works.

    Sync functions run where the ORM may be used, and use at most ``max_threads`` connections at once. The
    caller's Django user is at hand (``get_user``), permissions hide and refuse, write tools can ask first.
    Logging is left to Django's ``LOGGING``, and a question's state is sealed with ``SECRET_KEY``.

    Args:
        name: what the server is called.
        max_threads: how many sync tools, resources, prompts and resolvers may run at once.
        **options: the options of the SDK's class.

    Raises:
        ValueError: an option has a value that it cannot have.

    Example:
        >>> server = MCPServer("shop", version="1.0")
        >>> @server.write_tool(confirm="Cancel order {number}?", permission="shop.change_order")
        ... def cancel_order(number: int) -> str: ...
    """

    def __init__(self, name: str | None = None, *, max_threads: int = 40, **options: Any) -> None:
        self._threads = DjangoThreads(max_threads)
        self._tool_permissions = Permissions(self._threads)
        self._resource_permissions = Permissions(self._threads)
        self._prompt_permissions = Permissions(self._threads)
        self._taken: set[tuple[str, str]] = set()
        self.gated_tools: list[str] = []
        """The names of the tools that ask before they act."""
        options.setdefault("request_state_security", None)
        if options["request_state_security"] is None:
            options["request_state_security"] = request_state.security(name or "mcp-server")
        with _root_logger_left_alone():
            super().__init__(name, **options)
        self.middleware.insert(0, _in_django)

    # Registration

    def add_tool(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        structured_output: bool | None = None,
        *,
        permission: Permission | None = None,
    ) -> None:
        """The SDK's ``add_tool``, with a ``permission``; see ``tool``."""
        name = name or fn.__name__
        self._take("tool", name)
        self._tool_permissions.ask(name, permission)
        super().add_tool(self._threads.wrap(fn), name, title, description, annotations, icons, meta, structured_output)

    def remove_tool(self, name: str) -> None:
        super().remove_tool(name)
        self._taken.discard(("tool", name))
        if name in self.gated_tools:
            self.gated_tools.remove(name)

    def tool(
        self,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        structured_output: bool | None = None,
        *,
        permission: Permission | None = None,
    ) -> Callable[[F], F]:
        """The SDK's ``tool``, with a ``permission``.

        Args:
            permission: ``"app.codename"``, several of these, or a callable (sync or async) that is given
                the user and says whether he may. For a user who may not, the tool does not exist.
        """
        _must_be_called(name, "tool")

        def decorator(function: F) -> F:
            self.add_tool(
                function,
                name,
                title,
                description,
                annotations,
                icons,
                meta,
                structured_output,
                permission=permission,
            )
            return function

        return decorator

    def read_tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A tool that only reads: annotated as read-only and idempotent.

        Args:
            name: what it is called; the function's name if left out.
            permission: see ``tool``.
            annotations: take the place of these annotations, as a whole.
            **options: the other options of ``tool``.

        Raises:
            ValueError: the annotations say that it does not only read.

        Example:
            >>> @server.read_tool(permission="shop.view_order")
            ... def list_orders(status: str = "open") -> list[str]: ...
        """
        _must_be_called(name, "read_tool")

        def decorator(function: F) -> F:
            if annotations is not None and (annotations.read_only_hint is not True or annotations.destructive_hint):
                raise ValueError(
                    f"The read tool {name or function.__name__!r} is annotated as one that does not only read: "
                    "its annotations need read_only_hint=True, and no destructive_hint."
                )
            return self.tool(name, annotations=annotations or READ, permission=permission, **options)(function)

        return decorator

    def write_tool(
        self,
        name: str | None = None,
        *,
        confirm: str | Callable[..., Any],
        permission: Permission | None = None,
        annotations: ToolAnnotations | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A tool that changes something, and asks the user before it does.

        The question goes to the user of the client, through MCP elicitation; it is no authorization check,
        ``permission`` is. The tool runs once, on accept. Where nobody can be asked, the call fails.

        Args:
            name: what it is called; the function's name if left out.
            confirm: the question: a format string over the tool's arguments, or a callable (sync or async,
                it may use the ORM) that takes some of them by name and returns the text.
            permission: see ``tool``.
            annotations: take the place of "destructive, not idempotent", as a whole.
            **options: the other options of ``tool``.

        Raises:
            ValueError: the question speaks of an argument that the tool does not have, or the annotations
                say that the tool only reads.

        Example:
            >>> @server.write_tool(confirm="Cancel order {number}?")
            ... def cancel_order(number: int) -> str: ...
        """
        _must_be_called(name, "write_tool")

        def decorator(function: F) -> F:
            called = name or function.__name__
            if annotations is not None and annotations.read_only_hint:
                raise ValueError(f"The write tool {called!r} is annotated as read-only.")
            asks_first = gated(function, called, confirm, self._threads)
            self.tool(called, annotations=annotations or WRITE, permission=permission, **options)(asks_first)
            self.gated_tools.append(called)
            return function

        return decorator

    def resource(self, uri: str, *, permission: Permission | None = None, **options: Any) -> Callable[[F], F]:
        """The SDK's ``resource``, with a ``permission``; see ``tool``."""
        _must_be_called(uri, "resource")

        def decorator(function: F) -> F:
            self._resource_permissions.ask(uri, permission)
            wrapped = self._threads.wrap(function)
            if permission is not None:
                wrapped = self._only_if_permitted(uri, wrapped)
            if "{" in uri:
                self._take("resource", uri)  # the others are taken by add_resource
            super(MCPServer, self).resource(uri, **options)(wrapped)
            return function

        return decorator

    def add_resource(self, resource: Resource) -> None:
        self._take("resource", str(resource.uri))
        if isinstance(resource, FunctionResource):
            resource.fn = self._threads.wrap(resource.fn)
        super().add_resource(resource)

    def prompt(
        self,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        *,
        permission: Permission | None = None,
    ) -> Callable[[F], F]:
        """The SDK's ``prompt``, with a ``permission``; see ``tool``."""
        _must_be_called(name, "prompt")

        def decorator(function: F) -> F:
            prompt = Prompt.from_function(function, name=name, title=title, description=description, icons=icons)
            self._prompt_permissions.ask(prompt.name, permission)
            self.add_prompt(prompt)
            return function

        return decorator

    def add_prompt(self, prompt: Prompt) -> None:
        self._take("prompt", prompt.name)
        prompt.fn = self._threads.wrap(prompt.fn)
        super().add_prompt(prompt)

    def remove_prompt(self, name: str) -> None:
        super().remove_prompt(name)
        self._taken.discard(("prompt", name))

    def include(self, registry: Registry, *, write: bool = True, prefix: str = "") -> None:
        """Bind what a registry has recorded, in order.

        Args:
            registry: of a reusable app.
            write: False leaves its write tools out.
            prefix: goes before the names of its tools and prompts.

        Raises:
            ValueError: a name or URI is taken already.
        """
        for declaration in registry.declarations:
            if declaration.kind == "write_tool" and not write:
                continue
            options = dict(declaration.options)
            if declaration.kind != "resource":
                options["name"] = prefix + (options["name"] or declaration.function.__name__)
            getattr(self, declaration.kind)(**options)(declaration.function)

    def _take(self, kind: str, name: str) -> None:
        if (kind, name) in self._taken:
            raise ValueError(f"There is a {kind} {name!r} already: give one of the two another name.")
        self._taken.add((kind, name))

    # Requests: what the user may not use does not exist

    async def list_tools(self) -> list[Tool]:
        return [tool for tool in await super().list_tools() if await self._tool_permissions.allow(tool.name)]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[LifespanResultT, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        if not await self._tool_permissions.allow(name):
            raise ToolError(f"Unknown tool: {name}")
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, NoElicitation | UserDeclined | UserCanceled):
                raise ToolError(str(error.__cause__)) from error.__cause__
            raise

    async def list_resources(self) -> list[MCPResource]:
        return [
            resource
            for resource in await super().list_resources()
            if await self._resource_permissions.allow(str(resource.uri))
        ]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [
            template
            for template in await super().list_resource_templates()
            if await self._resource_permissions.allow(template.uri_template)
        ]

    def _only_if_permitted(self, uri: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A resource's function that is found as little as an unknown one by users who may not read it."""

        @functools.wraps(function)
        async def read(*args: Any, **kwargs: Any) -> Any:
            if not await self._resource_permissions.allow(uri):
                request = current_request.get()
                asked_for = (request.params or {}).get("uri", uri) if request is not None else uri
                raise ResourceNotFoundError(f"Unknown resource: {asked_for}")
            return await function(*args, **kwargs)

        return read

    async def list_prompts(self) -> list[MCPPrompt]:
        return [prompt for prompt in await super().list_prompts() if await self._prompt_permissions.allow(prompt.name)]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[LifespanResultT, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        if not await self._prompt_permissions.allow(name):
            raise ValueError(f"Unknown prompt: {name}")
        return await super().get_prompt(name, arguments, context)


async def _in_django(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """The outermost middleware of the server: the request's user, and a thread for its async ORM calls."""
    token = current_request.set(ctx)
    request_state.begin_request()
    try:
        async with thread_of_its_own():
            return await call_next(ctx)
    finally:
        current_request.reset(token)


def _must_be_called(name: object, decorator: str) -> None:
    if callable(name):
        raise TypeError(f"Write @{decorator}(), not @{decorator}: the decorator has to be called.")


@contextmanager
def _root_logger_left_alone() -> Iterator[None]:
    """The SDK's class gives the root logger a handler unless it has one: logging is Django's to set up."""
    root = logging.getLogger()
    placeholder = logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
