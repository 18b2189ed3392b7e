"""A write tool asks the user before it acts.

The gate is a question to the user, through MCP elicitation; it is no authorization check. It is a resolver
of the SDK: the SDK asks in the way of the client's protocol generation, binds the answer to the tool, its
arguments and the user, and lets it expire. The tool's body runs only once the answer is in.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
    Elicit,
    Resolve,
)
from mcp_types.version import is_version_at_least
from pydantic import BaseModel

from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.tools.request_state import use_up
from mcp_serving.tools.threads import DjangoThreads, declare, resolved_hints, signature_with

Confirm = str | Callable[..., Any]

# Parameters that the gate adds to a tool; the SDK fills them, clients do not see them.
_ASKABLE = "askable_"
_ANSWER = "confirmation_"
_CONTEXT = "context_of_the_question_"


class Confirmation(BaseModel):
    """The form of a question that is answered by accepting it: it has no fields."""


Answer = AcceptedElicitation[Confirmation] | DeclinedElicitation | CancelledElicitation


def gated(
    function: Callable[..., Any], name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Any]]:
    """``function`` with the gate before it.

    Args:
        function: the tool.
        name: what the tool is called.
        confirm: the question: a format string over the tool's arguments, or a callable (sync or async)
            that takes some of them by name.
        threads: where sync functions run.

    Raises:
        TypeError: the question is neither text nor callable.
        ValueError: the question speaks of an argument that the tool does not have.
    """
    tool = signature_with(function, resolved_hints(function))

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        del arguments[_ASKABLE]
        answer: Answer = arguments.pop(_ANSWER)
        if not await use_up(threads):
            raise ToolError(
                f"This question about {name} was answered before, and an answer counts once: nothing was done now. "
                "To ask the user again, call it anew."
            )
        if isinstance(answer, DeclinedElicitation):
            raise UserDeclined(
                f"The user said no to {name}: nothing was done. Do not call it again unless the user asks for it."
            )
        if isinstance(answer, CancelledElicitation):
            raise UserCanceled(
                f"The user closed the question about {name} without an answer: nothing was done. "
                "Ask what the user wants before calling it again."
            )
        return await threads.call(function, **arguments)

    declare(run, _signature(tool, _askable(name), _question(tool, name, confirm, threads)))
    return run


def _signature(tool: inspect.Signature, askable: Callable[..., Any], question: Callable[..., Any]) -> inspect.Signature:
    """The tool's, with the gate's two parameters around its own: they are resolved in this order.

    Whether the user can be asked comes before anything else that a tool may resolve; the question comes last.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(_ASKABLE, keyword, annotation=Annotated[None, Resolve(askable)]),
        *(parameter.replace(kind=keyword) for parameter in tool.parameters.values()),
        inspect.Parameter(_ANSWER, keyword, annotation=Annotated[Answer, Resolve(question)]),
    ]
    return tool.replace(parameters=parameters)


# The question


def _question(
    tool: inspect.Signature, name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Elicit[Confirmation]]]:
    """The resolver that asks: it takes the arguments that the question speaks of."""
    wanted = _wanted(tool, name, confirm)

    async def ask(**arguments: Any) -> Elicit[Confirmation]:
        # format() is given the developer's text; what clients send are values, which it does not interpret.
        text = await threads.call(confirm, **arguments) if callable(confirm) else confirm.format(**arguments)
        if text is None or not str(text).strip():
            raise ValueError(f"The question of tool {name!r} is empty: its confirm has to return a text.")
        return Elicit(str(text), Confirmation)

    ask.__qualname__ = f"confirm {name}"  # its name on the wire: the same in every worker
    parameters = [tool.parameters[each].replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in wanted]
    declare(ask, inspect.Signature(parameters, return_annotation=Elicit[Confirmation]))
    return ask


def _wanted(tool: inspect.Signature, name: str, confirm: Confirm) -> list[str]:
    """The arguments that the question speaks of, once each."""
    if callable(confirm):
        wanted = list(_parameters_to_fill(confirm, tool))
    elif isinstance(confirm, str):
        try:
            wanted = list(_fields(confirm))
        except ValueError as error:
            raise ValueError(f"The question of tool {name!r} is no format string: {error} in {confirm!r}.") from error
    else:
        raise TypeError(
            f"The question of tool {name!r} is {confirm!r}: confirm has to be a format string such as "
            "'Cancel order {number}?', or a callable that returns the text."
        )
    unknown = [each for each in wanted if each not in tool.parameters]
    if unknown:
        raise ValueError(
            f"The question of tool {name!r} speaks of {', '.join(map(repr, unknown))}, "
            f"but its arguments are {', '.join(map(repr, tool.parameters)) or 'none'}."
        )
    return list(dict.fromkeys(wanted))


def _parameters_to_fill(confirm: Callable[..., Any], tool: inspect.Signature) -> Iterator[str]:
    for parameter in inspect.signature(confirm).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield from tool.parameters
        elif parameter.name in tool.parameters or parameter.default is inspect.Parameter.empty:
            yield parameter.name


def _fields(text: str) -> Iterator[str]:
    """The arguments in a format string: ``order`` in ``{order.number}``, ``{order[0]}`` and ``{x:{order}}``."""
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            yield field.split(".")[0].split("[")[0]
            yield from _fields(spec or "")


# Whether there is anybody to ask


def _askable(name: str) -> Callable[..., Awaitable[None]]:
    """The resolver that fails, at once, where nobody can be asked."""

    async def must_be_askable(**arguments: Any) -> None:
        _must_be_askable(arguments[_CONTEXT], name)

    must_be_askable.__qualname__ = f"askable {name}"
    context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    declare(must_be_askable, inspect.Signature([context], return_annotation=None))
    return must_be_askable


def _must_be_askable(ctx: Context[Any, Any], name: str) -> None:
    """Refuse where nobody can be asked.

    Raises:
        NoElicitation: says what has to change.
    """
    version = ctx.protocol_version
    if version is None:
        raise NoElicitation(
            f"{name} asks the user first, and outside of an MCP request there is nobody to ask: "
            "call the function itself. Nothing was done."
        )
    by_round_trip = is_version_at_least(version, "2026-07-28")
    if not by_round_trip and not ctx.session.can_send_request:
        raise NoElicitation(
            f"{name} asks the user first, and cannot ask a client of protocol {version} through this handler: "
            "it needs StreamableHTTPHandler(stateless_http=False, json_response=False), or a client of "
            "2026-07-28. Nothing was done."
        )
    capabilities = ctx.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        raise NoElicitation(
            f"{name} asks the user first, and this client cannot ask: it does not declare the elicitation "
            "capability (form). Nothing was done."
        )
