# In one module because these are the decorators of one class, which share their options.
"""``MCPServer``: the decorators that declare tools, resources and prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from mcp.server.lowlevel.server import LifespanResultT
from mcp.server.mcpserver.prompts import Prompt
from mcp.shared.uri_template import UriTemplate
from mcp_types import ToolAnnotations

from mcp_serving import sdk
from mcp_serving.rate_limits.rate import valid_rate
from mcp_serving.threads import DjangoThreads
from mcp_serving.tools import request_state
from mcp_serving.tools.confirmation import with_confirmation
from mcp_serving.tools.conversion import ToolMetadata, with_converted_result
from mcp_serving.tools.declarations import (
    Confirm,
    Permission,
    check_is_called,
    check_read_annotations,
    check_write_annotations,
    name_of,
    validate_permission,
    validate_recorded,
    validate_scopes,
)
from mcp_serving.tools.functions import AsyncFunctions, as_function, unsupported_parameters_named
from mcp_serving.tools.registry import Registry, ResourceOptions, ToolOptions
from mcp_serving.tools.visibility import DEFAULT_NAME, PermissionCheckingServer

if TYPE_CHECKING:
    from mcp.server.mcpserver.resources import Resource
    from mcp.server.mcpserver.tools import Tool
    from mcp_types import Icon

F = TypeVar("F", bound=Callable[..., Any])

READ = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
WRITE = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)


class MCPServer(PermissionCheckingServer[LifespanResultT]):
    """The SDK's ``MCPServer`` for a Django project; everything that the SDK's offers still works.

    Sync functions may use the ORM, and use at most ``max_threads`` connections at once. ``get_user`` returns the
    Django user who calls. Permissions hide tools, resources and prompts, and write tools ask the user first.
    Logging is left to Django's ``LOGGING``. The state of a question is encrypted with ``SECRET_KEY``. A name that
    is declared twice is an error.

    Args:
        name: of the server.
        max_threads: how many sync tools, resources, prompts and resolvers may run at once. One user or token uses at
            most three quarters of these threads, rounded up.
        **options: the other options of the SDK's class.

    Raises:
        ValueError: an option has an invalid value, or a name is declared twice.

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
        threads = DjangoThreads(max_threads)
        self._functions = AsyncFunctions(threads)
        self.write_tools: list[str] = []
        """The names of the tools that ask the user before they act."""
        self.previewed_tools: list[str] = []
        """The names of the write tools whose question shows their database changes."""
        self.recorded_arguments: dict[str, frozenset[str]] = {}
        """The arguments of each tool that ``mcp_serving.calls`` may store."""
        options["request_state_security"] = request_state.security(
            options.get("request_state_security"), name or DEFAULT_NAME
        )
        options["tools"] = [self._functions.make_tool(tool) for tool in tools or ()]
        options["resources"] = [self._functions.make_resource(resource) for resource in resources or ()]
        with sdk.root_logger_unchanged():
            super().__init__(threads, name, title, description, instructions, website_url, icons, version, **options)
        for tool in tools or ():
            self._check_is_free("tool", tool.name)
            self.declared.add(("tool", tool.name))
        for resource in resources or ():
            self._check_is_free("resource", str(resource.uri))
            self.declared.add(("resource", str(resource.uri)))

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
        scopes: Iterable[str] = (),
        rate: str | None = None,
        record_arguments: bool | Iterable[str] = False,
    ) -> None:
        """The SDK's ``add_tool``, with the further options of ``tool``."""
        self._add_tool(
            fn,
            name_of(fn, name, "tool"),
            permission,
            scopes,
            rate=rate,
            record_arguments=record_arguments,
            title=title,
            description=description,
            annotations=annotations,
            icons=icons,
            meta=meta,
            structured_output=structured_output,
        )

    def _add_tool(
        self,
        function: Callable[..., Any],
        name: str,
        permission: Permission | None,
        scopes: Iterable[str],
        confirmed: Callable[[Callable[..., Any], str], Callable[..., Any]] | None = None,
        rate: str | None = None,
        record_arguments: bool | Iterable[str] = False,
        **options: Any,
    ) -> None:
        self._check_is_free("tool", name)
        limit = valid_rate(f"tool {name!r}", rate)
        valid, valid_scopes = validate_permission(name, permission), validate_scopes(name, scopes)

        def convert(result: Any) -> Any:
            return metadata.convert_here(result)  # the SDK makes it from the function's signature, below

        function = with_converted_result(as_function(function, name), convert, f"Tool {name!r}")
        if confirmed is not None:
            function = confirmed(function, name)
        with unsupported_parameters_named(function, f"Tool {name!r}"):
            super().add_tool(self._functions.make(function), name, **options)
        metadata = sdk.replace_tool_metadata(self, name, ToolMetadata.of)
        known = [field.alias or each for each, field in metadata.arg_model.model_fields.items()]
        try:
            if recorded := validate_recorded(name, record_arguments, known):
                self.recorded_arguments[name] = recorded
        except (TypeError, ValueError):
            super().remove_tool(name)
            raise
        self.declared.add(("tool", name))
        self._tool_permissions.require(name, valid)
        self.scopes.require("tool", name, valid_scopes)
        self.rates.require(name, limit)

    def remove_tool(self, name: str) -> None:
        super().remove_tool(name)
        self.declared.discard(("tool", name))
        self.recorded_arguments.pop(name, None)
        self._tool_permissions.remove(name)
        self.scopes.remove("tool", name)
        self.rates.remove(name)
        for names in (self.write_tools, self.previewed_tools):
            if name in names:
                names.remove(name)

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
        scopes: Iterable[str] = (),
        rate: str | None = None,
        record_arguments: bool | Iterable[str] = False,
    ) -> Callable[[F], F]:
        """The SDK's ``tool``, with a ``permission``, ``scopes``, a ``rate`` and ``record_arguments``.

        Args:
            permission: ``"app.codename"``, several of these, or a callable (sync or async) that is given
                the user and says whether they may. For other users, the tool does not exist.
            scopes: the scopes that a bearer token must have. A client whose token lacks one gets 403 with the
                missing scope, and can ask its user for it.
            rate: how often each caller may call the tool, such as ``"10/m"``. A call above it gets an error that says
                when to try again.
            record_arguments: True if ``mcp_serving.calls`` stores the arguments of each call, or a list of the
                arguments that it leaves out, such as ``["password"]``.
        """
        check_is_called(name, "tool")
        options = (title, description, annotations, icons, meta, structured_output)
        further: Any = {
            "permission": permission,
            "scopes": scopes,
            "rate": rate,
            "record_arguments": record_arguments,
        }

        def decorator(function: F) -> F:
            self.add_tool(function, name, *options, **further)
            return function

        return decorator

    def read_tool(
        self,
        name: str | None = None,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        annotations: ToolAnnotations | None = None,
        **options: Unpack[ToolOptions],
    ) -> Callable[[F], F]:
        """A tool that only reads: it is annotated as read-only and idempotent.

        Args:
            name: of the tool; by default the function's name.
            permission, scopes: see ``tool``.
            annotations: replace these annotations.
            **options: the other options of ``tool``.

        Raises:
            ValueError: the annotations say that the tool does more than read.

        Example:
            >>> @server.read_tool(permission="shop.view_order")
            ... def list_orders(status: str = "open") -> list[str]: ...
        """
        check_is_called(name, "read_tool")

        def decorator(function: F) -> F:
            check_read_annotations(name_of(function, name, "tool"), annotations)
            declare = self.tool(name, annotations=annotations or READ, permission=permission, scopes=scopes, **options)
            return declare(function)

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
        """A tool that changes something, and asks the user before it does.

        The client shows the question to its user, through MCP elicitation. The tool runs once, after the user has
        accepted. If the client cannot ask its user, the call fails. The question does not replace a check of
        authorization; that is ``permission``.

        Args:
            name: of the tool; by default the function's name.
            confirm: the question: a format string over the tool's arguments, or a callable (sync or async,
                it may use the ORM) that takes some of them by name and returns the text.
            preview: show the database changes in the question. The tool, which must be sync, runs in a transaction
                that is rolled back. After "yes" it runs again, and is committed if it changes the same.
            permission, scopes: see ``tool``.
            annotations: replace the annotations "destructive, not idempotent".
            **options: the other options of ``tool``.

        Raises:
            TypeError: the function is async, and ``preview`` is True.
            ValueError: the question uses an argument that the tool does not have, or the annotations say that
                the tool only reads.

        Example:
            >>> @server.write_tool(confirm="Cancel order {number}?")
            ... def cancel_order(number: int) -> str: ...
        """
        check_is_called(name, "write_tool")

        def decorator(function: F) -> F:
            tool_name = name_of(function, name, "tool")
            check_write_annotations(tool_name, annotations)
            shown: Any = {**options, "annotations": annotations or WRITE}
            self._add_write_tool(function, tool_name, permission, scopes, confirm, preview, **shown)
            return function

        return decorator

    def _add_write_tool(
        self,
        function: Callable[..., Any],
        name: str,
        permission: Permission | None,
        scopes: Iterable[str],
        confirm: Confirm,
        preview: bool,
        **options: Any,
    ) -> None:
        with_question = with_confirmation
        if preview:  # a server without previews does not import them
            from mcp_serving.tools.previewed import with_preview as with_question
        confirmed = functools.partial(with_question, confirm=confirm, threads=self._threads)
        self._add_tool(function, name, permission, scopes, confirmed, **options)
        self.write_tools.append(name)
        if preview:
            self.previewed_tools.append(name)

    def check_databases(self) -> None:
        """Refuse databases without transactions if a tool has a preview.

        Raises:
            ImproperlyConfigured: names the tool and the database.
        """
        if self.previewed_tools:
            from mcp_serving.preview.attempt import check_transactions

            check_transactions(self.previewed_tools[0])

    # Resources

    def resource(
        self,
        uri: str,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
        **options: Unpack[ResourceOptions],
    ) -> Callable[[F], F]:
        """The SDK's ``resource``, with a ``permission`` and ``scopes``; see ``tool``."""
        check_is_called(uri, "resource")
        template = UriTemplate.parse(uri)

        def decorator(function: F) -> F:
            self._check_is_free("resource", uri)
            valid, valid_scopes = validate_permission(uri, permission), validate_scopes(uri, scopes)
            readable = as_function(function, name_of(function, options.get("name"), "resource"))
            declare = super(MCPServer, self).resource(uri, **options)
            if template.variable_names:
                with unsupported_parameters_named(readable, f"Resource {uri!r}"):
                    declare(self._functions.make_reader(readable, uri))
                self.declared.add(("resource", uri))
                self._templates[uri] = template
            else:  # it calls add_resource
                declare(readable)
            self._resource_permissions.require(uri, valid)
            self.scopes.require("resource", uri, valid_scopes)
            return function

        return decorator

    def add_resource(self, resource: Resource) -> None:
        self._check_is_free("resource", str(resource.uri))
        super().add_resource(self._functions.make_resource(resource))
        self.declared.add(("resource", str(resource.uri)))

    # Prompts

    def prompt(
        self,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        *,
        permission: Permission | None = None,
        scopes: Iterable[str] = (),
    ) -> Callable[[F], F]:
        """The SDK's ``prompt``, with a ``permission`` and ``scopes``; see ``tool``."""
        check_is_called(name, "prompt")

        def decorator(function: F) -> F:
            prompt_name = name_of(function, name, "prompt")
            valid, valid_scopes = validate_permission(prompt_name, permission), validate_scopes(prompt_name, scopes)
            readable = as_function(function, prompt_name)
            with unsupported_parameters_named(readable, f"Prompt {prompt_name!r}"):
                prompt = Prompt.from_function(readable, prompt_name, title, description, icons)
            self.add_prompt(prompt)
            self._prompt_permissions.require(prompt_name, valid)
            self.scopes.require("prompt", prompt_name, valid_scopes)
            return function

        return decorator

    def add_prompt(self, prompt: Prompt) -> None:
        self._check_is_free("prompt", prompt.name)
        super().add_prompt(self._functions.make_prompt(prompt))
        self.declared.add(("prompt", prompt.name))

    def remove_prompt(self, name: str) -> None:
        super().remove_prompt(name)
        self.declared.discard(("prompt", name))
        self._prompt_permissions.remove(name)
        self.scopes.remove("prompt", name)

    # Registries

    def include(self, registry: Registry, *, write: bool = True, prefix: str = "") -> None:
        """Declare everything that a registry has recorded so far, in order; if one declaration fails, nothing is.

        Args:
            registry: of a reusable app.
            write: False leaves its write tools out.
            prefix: is put before the names of its tools and prompts. URIs stay the same.

        Raises:
            ValueError: a name or URI is declared already.
            Exception: the SDK rejects one of its functions.
        """
        included = [each for each in registry.declarations if write or each.decorator != "write_tool"]
        named = [(each, each.name if each.kind == "resource" else prefix + each.name) for each in included]
        for declaration, name in named:
            self._check_is_free(declaration.kind, name)
        # A trial on another server: the SDK checks a function only when it is registered.
        for server in (MCPServer[LifespanResultT](), self):
            for declaration, name in named:
                getattr(server, declaration.decorator)(name, **declaration.options)(declaration.function)
        registry.is_included = True
