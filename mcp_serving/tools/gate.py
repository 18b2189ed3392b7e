"""A write tool asks the user before it acts.

The gate is a question to the user, through MCP elicitation; it is no authorization check. It is a resolver
of the SDK: the SDK asks in the way of the client's protocol generation, binds the answer to the tool, its
arguments and the user, and lets it expire. The tool's body runs only once the answer is in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
    Elicit,
    Resolve,
)
from mcp_types.version import is_version_at_least
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.threads import DjangoThreads, declare, resolved_hints, signature_with
from mcp_serving.tools.question import ANSWER, ASKABLE, Confirm, must_stand_behind_a_gate, spoken_of
from mcp_serving.tools.request_state import ask_about, use_up

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
        ValueError: the question speaks of an argument that the tool does not have, or the tool has one that
            cannot stand behind a gate.
    """
    must_stand_behind_a_gate(function, name, confirm)
    tool = signature_with(function, resolved_hints(function))
    _must_not_be_aliased(tool, name)

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        del arguments[ASKABLE]
        answer: Answer = arguments.pop(ANSWER)
        await use_up(name, threads)
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


def _must_not_be_aliased(tool: inspect.Signature, name: str) -> None:
    """Refuse an argument that clients call otherwise than the function does: resolvers are given them by name."""
    for parameter in tool.parameters.values():
        for field in (parameter.default, *get_args(parameter.annotation)):
            if isinstance(field, FieldInfo) and field.alias not in (None, parameter.name):
                raise ValueError(
                    f"Argument {parameter.name!r} of tool {name!r} has the alias {field.alias!r}: a tool that asks "
                    "first has none. Rename the argument."
                )


def _signature(tool: inspect.Signature, askable: Callable[..., Any], question: Callable[..., Any]) -> inspect.Signature:
    """The tool's, with the gate's two parameters around its own: they are resolved in this order.

    Whether the user can be asked comes before anything else that a tool may resolve; the question comes last.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(ASKABLE, keyword, annotation=Annotated[None, Resolve(askable)]),
        *(parameter.replace(kind=keyword) for parameter in tool.parameters.values()),
        inspect.Parameter(ANSWER, keyword, annotation=Annotated[Answer, Resolve(question)]),
    ]
    return tool.replace(parameters=parameters)


# The question


def _question(
    tool: inspect.Signature, name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Elicit[Confirmation]]]:
    """The resolver that asks: it takes the arguments that the question speaks of."""
    wanted = spoken_of(tool, name, confirm)

    async def ask(**arguments: Any) -> Elicit[Confirmation]:
        # format() is given the developer's text; what clients send are values, which it does not interpret.
        text = await threads.call(confirm, **arguments) if callable(confirm) else confirm.format(**arguments)
        if text is None or not str(text).strip():
            raise ValueError(f"The question of tool {name!r} is empty: its confirm has to return a text.")
        ask_about(name)
        return Elicit(str(text), Confirmation)

    ask.__qualname__ = f"confirm {name}"  # its name on the wire: the same in every worker
    parameters = [tool.parameters[each].replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in wanted]
    declare(ask, inspect.Signature(parameters, return_annotation=Elicit[Confirmation]))
    return ask


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
