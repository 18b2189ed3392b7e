from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django.db import transaction
from mcp.server.lowlevel.server import LifespanResultT
from mcp.server.mcpserver import MCPServer as SDKMCPServer
from mcp.server.mcpserver.exceptions import (
    InvalidSignature,
    ResourceNotFoundError,
    ToolError,
    UnexpectedToolError,
)
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resolve import build_resolver_plans, find_resolved_parameters
from mcp.server.mcpserver.resources import FunctionResource, Resource
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import validate_mcp_param_headers
from mcp.shared.uri_template import UriTemplate
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    Completion,
    GetPromptResult,
    InputRequiredResult,
    PromptReference,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    ToolAnnotations,
    UnsubscribeRequestParams,
)
from mcp_types import Prompt as MCPPrompt
from mcp_types import Resource as MCPResource
from mcp_types import Tool as MCPTool
from mcp_types.version import is_version_at_least
from pydantic import ValidationError

from mcp_serving import current_request, sdk
from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.notifications.bus import ChannelLayerBus, VisibleNotifications
from mcp_serving.notifications.legacy import LegacySessions
from mcp_serving.threads import DjangoThreads, declare, is_async, not_atomic, thread_of_its_own
from mcp_serving.tools import request_state
from mcp_serving.tools.declarations import (
    Asked,
    Permission,
    checked,
    must_be_called,
    must_only_read,
    must_write,
    name_of,
    taken,
)
from mcp_serving.tools.gate import gated
from mcp_serving.tools.permissions import Permissions
from mcp_serving.tools.question import Confirm
from mcp_serving.tools.registry import Registry, ResourceOptions, ToolOptions
from mcp_serving.users import without_cached_permissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.helper_types import ReadResourceContents
    from mcp.server.mcpserver import Context
    from mcp_types import Icon
    from pydantic import AnyUrl

F = TypeVar("F", bound=Callable[..., Any])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)


class MCPServer(SDKMCPServer[LifespanResultT]):
    """The SDK's ``MCPServer`` with Django's ways inside; all that the SDK's offers still works.

    Sync functions run where the ORM may be used, and use at most ``max_threads`` connections at once. The
    caller's Django user is at hand (``get_user``), permissions hide and refuse, write tools ask first.
    Logging is left to Django's ``LOGGING``, a question's state is sealed with ``SECRET_KEY``, and a name
    that is taken twice is an error.

    Args:
        name: what the server is called.
        max_threads: how many sync tools, resources, prompts and resolvers may run at once.
        **options: the other options of the SDK's class.

    Raises:
        ValueError: an option has a value that it cannot have, or a name is taken twice.

    Example:
        >>> server = MCPServer("shop", version="1.0")
        >>> @server.write_tool(confirm="Cancel order {number}?", permission="shop.cancel_order")
        ... def cancel_order(number: int) -> str: ...
    """

    def __init__(
        self,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: list[Icon] | None = None,
        version: str = "",
        *,
        max_threads: int = 40,
        tools: list[Tool] | None = None,
        resources: list[Resource] | None = None,
        **options: Any,
    ) -> None:
        self._threads = DjangoThreads(max_threads)
        self._tool_permissions = Permissions(self._threads)
        self._resource_permissions = Permissions(self._threads)
        self._prompt_permissions = Permissions(self._threads)
        self._templates: dict[str, UriTemplate] = {}
        self._taken: set[tuple[str, str]] = set()
        self.gated_tools: list[str] = []
        """The names of the tools that ask before they act."""
        options["request_state_security"] = request_state.security(
            options.get("request_state_security"), name or "mcp-server"
        )
        bus = None
        if options.get("subscriptions") is not False:
            carrier = options.get("subscriptions") or ChannelLayerBus(name or "mcp-server", serves=self._serves)
            bus = options["subscriptions"] = VisibleNotifications(carrier)
        with _root_logger_left_alone():
            super().__init__(
                name,
                title,
                description,
                instructions,
                website_url,
                icons,
                version,
                tools=[self._adopted_tool(tool) for tool in tools or ()],
                resources=[self._adopted_resource(resource) for resource in resources or ()],
                **options,
            )
        self.middleware[:0] = [_in_django, self._hiding_notifications]
        low_level = sdk.low_level(self)
        if bus is not None:
            older = LegacySessions(bus, self._may_subscribe)
            self.middleware.insert(1, older.middleware)
            low_level.add_request_handler("resources/subscribe", SubscribeRequestParams, older.subscribe)
            low_level.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, older.unsubscribe)
        self._input_schema = sdk.hide_input_schemas(low_level, self._tool_permissions.__contains__)

    # Tools

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
        name = name_of(fn, name, "tool")
        self._must_be_free("tool", name)
        asked = checked(name, permission)
        wrapped = self._threads.wrap(_as_function(fn, name))
        super().add_tool(wrapped, name, title, description, annotations, icons, meta, structured_output)
        self._taken.add(("tool", name))
        self._tool_permissions.ask(name, asked)

    def remove_tool(self, name: str) -> None:
        super().remove_tool(name)
        self._taken.discard(("tool", name))
        self._tool_permissions.forget(name)
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
                the user and says whether they may. For a user who may not, the tool does not exist.
        """
        must_be_called(name, "tool")

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
        **options: Unpack[ToolOptions],
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
        must_be_called(name, "read_tool")

        def decorator(function: F) -> F:
            must_only_read(name_of(function, name, "tool"), annotations)
            return self.tool(name, annotations=annotations or READ, permission=permission, **options)(function)

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
        must_be_called(name, "write_tool")

        def decorator(function: F) -> F:
            called = name_of(function, name, "tool")
            must_write(called, annotations)
            asks_first = gated(_as_function(function, called), called, confirm, self._threads)
            self.tool(called, annotations=annotations or WRITE, permission=permission, **options)(asks_first)
            self.gated_tools.append(called)
            return function

        return decorator

    def _adopted_tool(self, tool: Tool) -> Tool:
        """A tool that the SDK's class has made, for the constructor's ``tools``."""
        self._must_be_free("tool", tool.name)
        self._taken.add(("tool", tool.name))
        wrapped = self._threads.wrap(tool.fn)
        resolved = find_resolved_parameters(wrapped)
        fields = tool.fn_metadata.arg_model.model_fields
        plans = build_resolver_plans(resolved, {field.alias or name for name, field in fields.items()})
        changes = {"fn": wrapped, "is_async": True, "resolved_params": resolved, "resolver_plans": plans}
        return tool.model_copy(update=changes)

    # Resources

    def resource(
        self, uri: str, *, permission: Permission | None = None, **options: Unpack[ResourceOptions]
    ) -> Callable[[F], F]:
        """The SDK's ``resource``, with a ``permission``; see ``tool``."""
        must_be_called(uri, "resource")
        template = UriTemplate.parse(uri)

        def decorator(function: F) -> F:
            self._must_be_free("resource", uri)
            asked = checked(uri, permission)
            called = name_of(function, options.get("name"), "resource")
            wrapped = self._threads.wrap(_as_function(function, called))
            super(MCPServer, self).resource(uri, **options)(wrapped)
            if template.variable_names:  # without variables, it came through add_resource
                self._taken.add(("resource", uri))
                self._templates[uri] = template
            self._resource_permissions.ask(uri, asked)
            return function

        return decorator

    def add_resource(self, resource: Resource) -> None:
        super().add_resource(self._adopted_resource(resource))

    def _adopted_resource(self, resource: Resource) -> Resource:
        self._must_be_free("resource", str(resource.uri))
        self._taken.add(("resource", str(resource.uri)))
        if not isinstance(resource, FunctionResource):
            return resource
        # A copy: the same object may be given to another server.
        return resource.model_copy(update={"fn": self._threads.wrap(resource.fn)})

    # Prompts

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
        must_be_called(name, "prompt")

        def decorator(function: F) -> F:
            called = name_of(function, name, "prompt")
            asked = checked(called, permission)
            prompt = Prompt.from_function(_as_function(function, called), called, title, description, icons)
            self.add_prompt(prompt)
            self._prompt_permissions.ask(called, asked)
            return function

        return decorator

    def add_prompt(self, prompt: Prompt) -> None:
        self._must_be_free("prompt", prompt.name)
        super().add_prompt(prompt.model_copy(update={"fn": _told_of_arguments(self._threads.wrap(prompt.fn))}))
        self._taken.add(("prompt", prompt.name))

    def remove_prompt(self, name: str) -> None:
        super().remove_prompt(name)
        self._taken.discard(("prompt", name))
        self._prompt_permissions.forget(name)

    def completion(self) -> Callable[[F], F]:
        """The SDK's ``completion``, for sync functions too; it is not asked about what the user may not use."""

        def decorator(function: F) -> F:
            async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
                permissions, name = (
                    (self._prompt_permissions, ref.name)
                    if isinstance(ref, PromptReference)
                    else (self._resource_permissions, str(ref.uri))
                )
                if not await permissions.allow(name):
                    return None
                found: Completion | None = await self._threads.call(function, ref, argument, context)
                return found

            super(MCPServer, self).completion()(complete)  # type: ignore[no-untyped-call]
            return function

        return decorator

    def permission_of(self, kind: str, name: str) -> Asked | None:
        """What a user needs for a "tool", "resource", "template" or "prompt"; None if everybody may use it.

        Returns:
            The names of all permissions that are needed, or the callable that decides.
        """
        by_kind = {"tool": self._tool_permissions, "prompt": self._prompt_permissions}
        return by_kind.get(kind, self._resource_permissions).asked(name)

    # Registries

    def include(self, registry: Registry, *, write: bool = True, prefix: str = "") -> None:
        """Bind what a registry has recorded so far, in order; all of it, or nothing where one thing cannot be bound.

        Args:
            registry: of a reusable app.
            write: False leaves its write tools out.
            prefix: goes before the names of its tools and prompts; URIs stay what they are.

        Raises:
            ValueError: a name or URI is taken already.
            Exception: the SDK does not take one of its functions.
        """
        wanted = [each for each in registry.declarations if write or each.decorator != "write_tool"]
        named = [(each, each.name if each.kind == "resource" else prefix + each.name) for each in wanted]
        for declaration, name in named:
            self._must_be_free(declaration.kind, name)
        # What only the SDK can find wrong, it finds in a server that is thrown away.
        for server in (MCPServer[LifespanResultT](), self):
            for declaration, name in named:
                getattr(server, declaration.decorator)(name, **declaration.options)(declaration.function)

    def _must_be_free(self, kind: str, name: str) -> None:
        if (kind, name) in self._taken:
            raise ValueError(taken(kind, name))

    # Requests: what the user may not use does not exist

    async def list_tools(self) -> list[MCPTool]:
        tools = await super().list_tools()
        allowed = await self._tool_permissions.allowed(tool.name for tool in tools)
        return [tool for tool in tools if tool.name in allowed]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[LifespanResultT, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        if not await self._tool_permissions.allow(name):
            raise ToolError(f"Unknown tool: {name}")
        if name in self._tool_permissions:
            self._check_headers(name, arguments)
        try:
            with current_request.updated(tool_arguments=arguments):
                return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, NoElicitation | UserDeclined | UserCanceled):
                raise ToolError(str(error.__cause__)) from error.__cause__
            raise

    def _check_headers(self, name: str, arguments: dict[str, Any]) -> None:
        """The SDK's check of ``Mcp-Param-*`` headers, for a tool that is not there for everybody."""
        request = current_request.get().mcp_context
        if request is None or request.request is None or not is_version_at_least(request.protocol_version, _MODERN):
            return
        schema = self._input_schema(name)
        if schema is None or (request.params or {}).get("name") != name:  # unknown, or called by another tool
            return
        if refused := validate_mcp_param_headers(schema, arguments, request.request.headers):
            raise MCPError(refused.code, refused.message, refused.data)

    async def list_resources(self) -> list[MCPResource]:
        resources = await super().list_resources()
        allowed = await self._resource_permissions.allowed(resource.uri for resource in resources)
        return [resource for resource in resources if resource.uri in allowed]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        templates = await super().list_resource_templates()
        allowed = await self._resource_permissions.allowed(template.uri_template for template in templates)
        return [template for template in templates if template.uri_template in allowed]

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[LifespanResultT, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        declared = self._declared(str(uri))
        if declared is not None and not await self._resource_permissions.allow(declared):
            raise ResourceNotFoundError(f"Unknown resource: {uri}")
        return await super().read_resource(uri, context)

    def _declared(self, uri: str) -> str | None:
        """The resource or template that the SDK would read ``uri`` from."""
        if ("resource", uri) in self._taken and uri not in self._templates:
            return uri
        return next((name for name, template in self._templates.items() if template.match(uri) is not None), None)

    def _serves(self, uri: str) -> bool:
        return self._declared(uri) is not None

    async def _may_subscribe(self, uri: str) -> bool:
        declared = self._declared(uri)
        return declared is not None and await self._resource_permissions.allow(declared)

    async def _hiding_notifications(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A subscription to what the user may not read is accepted as one to what does not exist: no event comes."""
        if ctx.method != sdk.LISTEN:
            return await call_next(ctx)
        try:
            asked = SubscriptionsListenRequestParams.model_validate(ctx.params).notifications
        except ValidationError:  # which the SDK answers
            return await call_next(ctx)
        declared = {uri: self._declared(uri) or uri for uri in asked.resource_subscriptions or ()}
        allowed = await self._resource_permissions.allowed(declared.values())
        with current_request.updated(
            hidden_uris=frozenset(uri for uri, name in declared.items() if name not in allowed)
        ):
            return await call_next(ctx)

    async def list_prompts(self) -> list[MCPPrompt]:
        prompts = await super().list_prompts()
        allowed = await self._prompt_permissions.allowed(prompt.name for prompt in prompts)
        return [prompt for prompt in prompts if prompt.name in allowed]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[LifespanResultT, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        declared = next((prompt for prompt in await super().list_prompts() if prompt.name == name), None)
        if declared is None or not await self._prompt_permissions.allow(name):
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name}")
        needed = [argument.name for argument in declared.arguments or () if argument.required]
        if missing := [each for each in needed if each not in (arguments or {})]:
            raise MCPError(INVALID_PARAMS, f"Prompt {name} lacks arguments: {', '.join(missing)}")
        return await super().get_prompt(name, arguments, context)


_MODERN = "2026-07-28"
"""From here on, a client may repeat arguments in ``Mcp-Param-*`` headers."""


async def _in_django(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """The outermost middleware of the server: the request's user, and a thread for its async ORM calls."""
    user = current_request.get().local_user
    fresh = user and without_cached_permissions(user)
    # Restored afterwards: a client in the same process runs its request in the task of the tool that uses it.
    with current_request.updated(mcp_context=ctx, local_user=fresh, question_round=request_state.Round()):
        async with thread_of_its_own():
            return await call_next(ctx)


def _told_of_arguments(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The function of a prompt, whose client is told which arguments are wrong: for the SDK, all of it is a crash."""

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except ValidationError as error:
            # So pydantic calls what is wrong with a call; anything else is from within.
            if error.title != getattr(function, "__qualname__", None):
                raise
            wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise MCPError(INVALID_PARAMS, f"Wrong arguments: {wrong}") from error

    return call


def _as_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """What the SDK and ``DjangoThreads`` can work with: a function whose type hints are there at run time.

    A ``functools.partial`` or an object with a ``__call__`` becomes a function with the same signature.

    Raises:
        InvalidSignature: a type hint names something that is not there.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidSignature(
            f"The type hints of {name!r} cannot be read at run time: {error}. "
            "What they name has to be in its module, outside of TYPE_CHECKING."
        ) from error
    if inspect.isroutine(function):
        return function
    call = _async_call(function) if is_async(function) else _sync_call(function)
    called = function.func if isinstance(function, functools.partial) else function
    functools.update_wrapper(call, called, assigned=("__module__", "__doc__"), updated=())
    call.__name__ = call.__qualname__ = name
    for database in not_atomic(function):
        transaction.non_atomic_requests(using=database)(call)
    declare(call, signature)
    return call


def _async_call(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return call


def _sync_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


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
