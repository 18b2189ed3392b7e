"""Functions that become tools, resources, prompts and resolvers: their signatures, read and changed."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_args, get_origin
from weakref import WeakValueDictionary

from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.http import Http404
from mcp.server.mcpserver.exceptions import InvalidSignature
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resolve import Resolve, build_resolver_plans, find_resolved_parameters
from mcp.server.mcpserver.resources import FunctionResource, Resource
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.context_injection import find_context_parameter
from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from pydantic import PydanticInvalidForJsonSchema, ValidationError

from mcp_serving.threads import DjangoThreads, is_async, non_atomic_databases
from mcp_serving.tools.conversion import ToolMetadata, prompt_messages, resource_contents, with_converted_result
from mcp_serving.validation_errors import summary


def as_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` in a form that the SDK can register: a function whose type hints can be read at run time.

    A ``functools.partial`` or an object with a ``__call__`` becomes a function with the same signature.

    Raises:
        InvalidSignature: a type hint uses a name that does not exist at run time.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidSignature(
            f"The type hints of {name!r} cannot be read at run time: {error}. "
            "Import the name in the function's module, outside of TYPE_CHECKING."
        ) from error
    if inspect.isroutine(function):
        return function
    call = _async_call(function) if is_async(function) else _sync_call(function)
    original = function.func if isinstance(function, functools.partial) else function
    functools.update_wrapper(call, original, assigned=("__module__", "__doc__"), updated=())
    call.__name__ = call.__qualname__ = name
    for database in non_atomic_databases(function):
        transaction.non_atomic_requests(using=database)(call)
    set_signature(call, signature)
    return call


@contextmanager
def unsupported_parameters_named(function: Callable[..., Any], name: str) -> Iterator[None]:
    """Name the parameter whose type has no JSON schema; pydantic's error names neither it nor the function.

    Raises:
        InvalidSignature: instead of pydantic's error.
    """
    try:
        yield
    except PydanticInvalidForJsonSchema as error:
        if (parameter := _without_schema(function)) is None:
            raise
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = f"{code.co_filename}, line {code.co_firstlineno}" if code else function.__module__
        raise InvalidSignature(
            f"{name} has the parameter {str(parameter)!r}, whose type has no JSON schema ({place}). "
            "Use a type that JSON has, such as int for a primary key."
        ) from error


def _without_schema(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The first parameter that keeps pydantic from making the JSON schema of the arguments."""
    parameters = inspect.signature(function, eval_str=True).parameters
    from_sdk = {find_context_parameter(function), *find_resolved_parameters(function)}
    for name in parameters:
        others = [each for each in parameters if each != name]
        try:
            if name not in from_sdk:
                func_metadata(function, others, structured_output=False).arg_model.model_json_schema()
        except PydanticInvalidForJsonSchema:
            return parameters[name]
    return None


def _async_call(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return call


def _sync_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class AsyncFunctions:
    """Makes functions async: the SDK awaits them, and sync ones run in the server's threads.

    Args:
        threads: of the server.
    """

    def __init__(self, threads: DjangoThreads) -> None:
        self._threads = threads
        # The SDK runs a resolver that several parameters share once a call, and recognises it by its identity.
        self._made: WeakValueDictionary[Hashable, Callable[..., Awaitable[Any]]] = WeakValueDictionary()

    def make(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """An async function with the same signature, whose resolvers are async, too."""
        # The new function keeps the original alive, so that its id is not reused.
        key: Hashable = function if isinstance(function, Hashable) else id(function)
        made = self._made.get(key)
        if made is None:
            made = self._make(function)
            if made is not function:
                self._made[key] = made
        return made

    def _make(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        hints = type_hints(function)
        async_hints = {name: self._with_async_resolver(hint) for name, hint in hints.items()}
        if is_async(function) and async_hints == hints:
            return function

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._threads.call(function, *args, **kwargs)

        set_signature(call, signature_with_hints(function, async_hints))
        return call

    def make_tool(self, tool: Tool) -> Tool:
        """A copy of a tool of the SDK's class, whose function and resolvers are async."""
        metadata = ToolMetadata.of(tool.fn_metadata)
        function = self.make(with_converted_result(tool.fn, metadata.convert_here, f"Tool {tool.name!r}"))
        resolved = find_resolved_parameters(function)
        fields = tool.fn_metadata.arg_model.model_fields
        plans = build_resolver_plans(resolved, {field.alias or name for name, field in fields.items()})
        changes = {
            "fn": function,
            "fn_metadata": metadata,
            "is_async": True,
            "resolved_params": resolved,
            "resolver_plans": plans,
        }
        return tool.model_copy(update=changes)

    def make_resource(self, resource: Resource) -> Resource:
        """A copy of a resource of the SDK's class, whose function is async; other kinds of resources unchanged."""
        if not isinstance(resource, FunctionResource):
            return resource
        return resource.model_copy(update={"fn": self.make_reader(resource.fn, str(resource.uri))})

    def make_reader(self, function: Callable[..., Any], uri: str) -> Callable[..., Awaitable[Any]]:
        """The async function of a resource or template, whose result is text or bytes."""
        return self.make(with_converted_result(function, resource_contents, f"Resource {uri!r}"))

    def make_prompt(self, prompt: Prompt) -> Prompt:
        """A copy of a prompt of the SDK's class, whose function is async and reports invalid arguments."""
        function = with_converted_result(prompt.fn, prompt_messages, f"Prompt {prompt.name!r}")
        return prompt.model_copy(update={"fn": _with_reported_arguments(self.make(function))})

    def _with_async_resolver(self, hint: Any) -> Any:
        if get_origin(hint) is not Annotated:
            return hint
        kind, *metadata = get_args(hint)
        if not any(isinstance(item, Resolve) for item in metadata):
            return hint
        changed = [Resolve(self.make(item.fn)) if isinstance(item, Resolve) else item for item in metadata]
        return Annotated[kind, *changed]


def _with_reported_arguments(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The function of a prompt, for which invalid arguments are reported to the client.

    The SDK treats them as a crash of the prompt.
    """

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except ValidationError as error:
            if not is_about_arguments(error, function):
                raise
            raise MCPError(INVALID_PARAMS, f"Wrong arguments: {summary(error)}") from None

    return call


def is_about_arguments(error: BaseException | None, function: Callable[..., Any] | None) -> bool:
    """Whether pydantic has rejected the arguments of ``function``; other validation errors are raised within it."""
    return isinstance(error, ValidationError) and error.title == getattr(function, "__qualname__", None)


def is_missing(error: BaseException | None, function: Callable[..., Any] | None) -> bool:
    """Whether a resource's function has not found its object, or the URI has an invalid value for an argument."""
    return isinstance(error, ObjectDoesNotExist | Http404) or is_about_arguments(error, function)


def described(error: BaseException) -> str:
    """An exception for a developer: with DEBUG on, the client sees it."""
    return f"{type(error).__name__}: {error}"[:2000]


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints with their metadata; empty if one of them cannot be read at run time."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that is imported for type checkers only: the SDK is as tolerant
        return {}


def signature_with_hints(function: Callable[..., Any], hints: dict[str, Any]) -> inspect.Signature:
    """The signature of ``function`` with these type hints."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    returns = hints.get("return", signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returns)


def set_signature(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Make ``function`` look as if it had been written with this signature."""
    function.__signature__ = signature  # type: ignore[attr-defined]
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    hints["return"] = signature.return_annotation
    function.__annotations__ = {name: hint for name, hint in hints.items() if hint is not inspect.Parameter.empty}
