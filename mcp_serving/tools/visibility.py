# In one module because each request to one class of servers is checked here in the same way.
"""Requests are answered as if the tools, resources and prompts that the user may not use did not exist."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from mcp.server.lowlevel.server import LifespanResultT
from mcp.server.mcpserver import MCPServer as SDKMCPServer
from mcp.server.mcpserver.exceptions import (
    ResourceNotFoundError,
    ToolError,
    UnexpectedResourceError,
    UnexpectedToolError,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import UriTemplate
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    Completion,
    GetPromptResult,
    InputRequiredResult,
    JSONRPCRequest,
    PromptReference,
    ResourceTemplate,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types import Prompt as MCPPrompt
from mcp_types import Resource as MCPResource
from mcp_types import Tool as MCPTool
from pydantic import ValidationError

from mcp_serving import current_request, sdk
from mcp_serving.call_outcomes import Refused, noting_outcome
from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.notifications.bus import ChannelLayerBus, SubscribedNotifications
from mcp_serving.notifications.legacy import LegacySessions
from mcp_serving.rate_limits.tool_rates import ToolRates
from mcp_serving.security.scopes import Scopes
from mcp_serving.signals import Outcome
from mcp_serving.threads import DjangoThreads, async_orm_thread
from mcp_serving.tools import request_state
from mcp_serving.tools.declarations import ValidPermission, already_declared
from mcp_serving.tools.functions import described, is_missing
from mcp_serving.tools.permissions import Permissions, check_param_headers
from mcp_serving.users import without_cached_permissions

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel.helper_types import ReadResourceContents
    from mcp.server.mcpserver import Context
    from pydantic import AnyUrl

    from mcp_serving.fair_threads import FairThreads

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME = "mcp-server"
"""The SDK's name for a server without one."""

LONGEST_NAME = 200
"""Characters of an unknown name or URI that an error repeats."""


class PermissionCheckingServer(SDKMCPServer[LifespanResultT]):
    """The SDK's ``MCPServer``, which hides from each user what that user may not use.

    Args:
        threads: in which sync functions run, and permissions are looked up.
        name: of the server.
        *args: the next positional arguments of the SDK's class.
        **options: its other options.
    """

    def __init__(self, threads: DjangoThreads, name: str | None, *args: Any, **options: Any) -> None:
        self._threads = threads
        self._tool_permissions = Permissions(threads)
        self._resource_permissions = Permissions(threads)
        self._prompt_permissions = Permissions(threads)
        self.scopes = Scopes()
        """The scopes that bearer tokens need."""
        self.rates = ToolRates(name or DEFAULT_NAME)
        self._state = options["request_state_security"].codec
        self._templates: dict[str, UriTemplate] = {}
        self.declared: set[tuple[str, str]] = set()
        """The kind and name of each tool, resource and prompt."""
        bus = None
        if options.get("subscriptions") is not False:
            inner = options.get("subscriptions") or ChannelLayerBus(name or DEFAULT_NAME, serves=self._serves)
            bus = options["subscriptions"] = SubscribedNotifications(inner, self._identify)
        super().__init__(name, *args, **options)
        self.middleware.insert(0, self._hide_subscriptions)
        low_level = sdk.low_level(self)
        if bus is not None:
            legacy = LegacySessions(bus, self._may_subscribe)
            self.middleware.insert(0, legacy.middleware)
            low_level.add_request_handler("resources/subscribe", SubscribeRequestParams, legacy.subscribe)
            low_level.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, legacy.unsubscribe)
        self.middleware.insert(0, self._with_current_request)
        self._input_schema = sdk.hide_input_schemas(low_level, self._tool_permissions.__contains__)

    @property
    def threads(self) -> FairThreads:
        """The threads in which its sync functions run."""
        return self._threads.pool

    def _check_is_free(self, kind: str, name: str) -> None:
        if (kind, name) in self.declared:
            raise ValueError(already_declared(kind, name))

    def permission_of(self, kind: str, name: str) -> ValidPermission | None:
        """The permission that a "tool", "resource", "template" or "prompt" requires; None if everybody may use it.

        Returns:
            The names of all permissions that are needed, or the callable that decides.
        """
        return self._permissions_of(kind).required(name)

    def _permissions_of(self, kind: str) -> Permissions:
        by_kind = {"tool": self._tool_permissions, "prompt": self._prompt_permissions}
        return by_kind.get(kind, self._resource_permissions)

    async def missing_scopes(self, message: JSONRPCRequest, user: Any, granted: Iterable[str]) -> list[str]:
        """The scopes that the token of a request lacks; none for what the user may not use, which does not exist.

        Args:
            message: the request, which the SDK has not read yet.
            user: the Django user of the token.
            granted: the scopes of the token.
        """
        used = self._used_by(message.method, message.params or {})
        if used is None:
            return []
        kind, name = used
        missing = self.scopes.missing(kind, name, granted)
        if missing and not await self._permissions_of(kind).allow_user(user, name):
            return []
        return missing

    def _used_by(self, method: str, params: Mapping[str, Any]) -> tuple[str, str] | None:
        """The kind and name of the tool, resource or prompt that a request uses."""
        if method == "completion/complete" and isinstance(params.get("ref"), dict):
            params = params["ref"]
            method = "prompts/get" if params.get("type") == "ref/prompt" else "resources/read"
        name, uri = params.get("name"), params.get("uri")
        if method in ("tools/call", "prompts/get") and isinstance(name, str):
            return ("tool" if method == "tools/call" else "prompt"), name
        if method in ("resources/read", "resources/subscribe") and isinstance(uri, str):
            return "resource", self._resource_for(uri) or uri
        return None

    def continued_call(self, params: Any) -> str | None:
        """The call that a request continues with an answer; see ``OneCallCodec.call_of``."""
        call: str | None = self._state.call_of(params)
        return call

    # Each request

    async def _with_current_request(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """The outermost middleware: the user and the question of the request, and a thread for its async ORM calls."""
        user = current_request.get().local_user
        fresh = user and without_cached_permissions(user)
        ctx = request_state.with_contents(ctx)
        # Restored afterwards: a client in the same process runs its request in the task of the tool that uses it.
        first_round = request_state.Round(check_access=self._check_access)
        with (
            current_request.updated(mcp_context=ctx, local_user=fresh, question_round=first_round),
            async_orm_thread(),
        ):
            result = await call_next(ctx)
            await request_state.store_question(self._threads)
            return result

    async def _check_access(self, tool: str) -> None:
        """Refuse a tool, right before it runs, to a user who has lost the permission.

        Raises:
            ToolError: the tool does not exist for this user.
        """
        if not await self._tool_permissions.still_allow(tool):
            raise ToolError(f"Unknown tool: {tool}") from Refused("permission")

    # Tools

    async def list_tools(self) -> list[MCPTool]:
        tools = await super().list_tools()
        allowed = await self._tool_permissions.allowed(tool.name for tool in tools)
        return [tool for tool in tools if tool.name in allowed]

    @noting_outcome
    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[LifespanResultT, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        exists = ("tool", name) in self.declared
        if not await self._tool_permissions.allow(name, exists=exists):
            raise ToolError(f"Unknown tool: {name[:LONGEST_NAME]}") from _hidden_or_missing(exists)
        self.scopes.check("tool", name)
        if name in self.rates:
            await self.rates.check(name, request_state.counted_call())
        if name in self._tool_permissions:
            check_param_headers(name, arguments, self._input_schema)
        try:
            with current_request.updated(tool_arguments=arguments):
                return await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            if isinstance(error.__cause__, NoElicitation | UserDeclined | UserCanceled):
                raise ToolError(str(error.__cause__)) from error.__cause__
            current_request.note_failure(error.__cause__ or error)
            if settings.DEBUG and error.__cause__ is not None:
                raise UnexpectedToolError(f"{error}: {described(error.__cause__)}") from error.__cause__
            raise

    # Resources

    async def list_resources(self) -> list[MCPResource]:
        resources = await super().list_resources()
        allowed = await self._resource_permissions.allowed(resource.uri for resource in resources)
        return [resource for resource in resources if resource.uri in allowed]

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        templates = await super().list_resource_templates()
        allowed = await self._resource_permissions.allowed(template.uri_template for template in templates)
        return [template for template in templates if template.uri_template in allowed]

    @noting_outcome
    async def read_resource(
        self, uri: AnyUrl | str, context: Context[LifespanResultT, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        uri = str(uri)
        name = self._resource_for(uri)
        unknown = f"Unknown resource: {uri[:LONGEST_NAME]}"
        if not await self._resource_permissions.allow(name or uri, exists=name is not None) or name is None:
            raise ResourceNotFoundError(unknown) from _hidden_or_missing(name is not None)
        self.scopes.check("resource", name)
        try:
            return await super().read_resource(uri, context)
        except UnexpectedResourceError as error:
            function = sdk.function_of(self, "template" if name in self._templates else "resource", name)
            cause = error.__cause__
            if isinstance(cause, UnexpectedResourceError):  # of a template
                cause = cause.__cause__
            if is_missing(cause, function):
                raise ResourceNotFoundError(unknown) from cause
            current_request.note_failure(cause or error)
            if settings.DEBUG and cause is not None:
                raise UnexpectedResourceError(f"{error}: {described(cause)}") from cause
            raise

    def _resource_for(self, uri: str) -> str | None:
        """The declared URI or URI template from which the SDK would read ``uri``."""
        return self._resource_and_variables(uri)[0]

    def _resource_and_variables(self, uri: str) -> tuple[str | None, Mapping[str, Any]]:
        if ("resource", uri) in self.declared and uri not in self._templates:
            return uri, {}
        for name, template in self._templates.items():
            if (variables := template.match(uri)) is not None:
                return name, variables
        return None, {}

    # Subscriptions

    def _serves(self, uri: str) -> bool:
        return self._resource_for(uri) is not None

    def _identify(self, uri: str) -> Hashable:
        """A value that is equal for all spellings of a URI, such as other percent-encodings of a variable."""
        name, variables = self._resource_and_variables(uri)
        return uri if name is None else (name, *(str(variables[each]) for each in sorted(variables)))

    async def _may_subscribe(self, uri: str) -> bool:
        name = self._resource_for(uri)
        if name is None or self.scopes.missing_now("resource", name):
            return False
        return await self._resource_permissions.allow(name)

    async def _hide_subscriptions(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """An MCP middleware: a hidden resource is subscribed to like a missing one, and no notification follows."""
        if ctx.method != sdk.LISTEN:
            return await call_next(ctx)
        try:
            wanted = SubscriptionsListenRequestParams.model_validate(ctx.params).notifications
        except ValidationError:  # the SDK answers it
            return await call_next(ctx)
        names = {uri: self._resource_for(uri) or uri for uri in wanted.resource_subscriptions or ()}
        allowed = await self._resource_permissions.allowed(names.values())
        allowed = {name for name in allowed if not self.scopes.missing_now("resource", name)}
        visible = frozenset(uri for uri, name in names.items() if name in allowed)
        with current_request.updated(listen_uris=visible):
            return await call_next(ctx)

    # Prompts and completion

    async def list_prompts(self) -> list[MCPPrompt]:
        prompts = await super().list_prompts()
        allowed = await self._prompt_permissions.allowed(prompt.name for prompt in prompts)
        return [prompt for prompt in prompts if prompt.name in allowed]

    @noting_outcome
    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[LifespanResultT, Any] | None = None
    ) -> GetPromptResult | InputRequiredResult:
        prompt = next((each for each in await super().list_prompts() if each.name == name), None)
        if not await self._prompt_permissions.allow(name, exists=prompt is not None) or prompt is None:
            raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name[:LONGEST_NAME]}") from _hidden_or_missing(
                prompt is not None
            )
        self.scopes.check("prompt", name)
        required = [argument.name for argument in prompt.arguments or () if argument.required]
        if missing := [each for each in required if each not in (arguments or {})]:
            raise MCPError(INVALID_PARAMS, f"Prompt {name} lacks arguments: {', '.join(missing)}")
        known = {argument.name for argument in prompt.arguments or ()}
        if unknown := [each[:LONGEST_NAME] for each in arguments or {} if each not in known]:
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise MCPError(INVALID_PARAMS, f"Prompt {name} has no arguments {', '.join(unknown[:10])}{more}")
        try:
            return await super().get_prompt(name, arguments, context)
        except ValueError as error:
            cause = error.__cause__
            while isinstance(cause, ValueError) and str(cause).startswith("Error rendering prompt"):
                cause = cause.__cause__  # the SDK wraps the exception twice
            if not settings.DEBUG or cause is None:
                raise
            logger.exception("Prompt %r failed.", name)
            raise MCPError(INTERNAL_ERROR, f"{error}: {described(cause)}") from error

    def completion(self) -> Callable[[F], F]:
        """The SDK's ``completion``, for sync functions too. It is not called for a hidden prompt or resource."""

        def decorator(function: F) -> F:
            async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
                if isinstance(ref, PromptReference):
                    kind, name = "prompt", ref.name
                    exists = (kind, name) in self.declared
                else:  # a template, or a URI that a client has made of one
                    kind, name = "resource", str(ref.uri)
                    found = name if name in self._templates else self._resource_for(name)
                    exists, name = found is not None, found or name
                if not await self._permissions_of(kind).allow(name, exists=exists):
                    current_request.note_outcome(Outcome.REFUSED, _hidden_or_missing(exists).reason)
                    return None
                if self.scopes.missing_now(kind, name):
                    current_request.note_outcome(Outcome.REFUSED, "scope")
                    return None
                completion: Completion | None = await self._threads.call(function, ref, argument, context)
                return completion

            super(PermissionCheckingServer, self).completion()(complete)  # type: ignore[no-untyped-call]
            return function

        return decorator


def _hidden_or_missing(exists: bool) -> Refused:
    """Why a name cannot be used, for the record of the call. The client gets the same error in both cases."""
    return Refused("permission" if exists else "unknown")
