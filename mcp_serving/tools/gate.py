"""A write tool asks the user before it acts.

The gate is a question to the user, through MCP elicitation; it is no authorization check. It is a resolver
of the SDK: the SDK asks in the way of the client's protocol generation, binds the answer to the tool, its
arguments and the user, and lets it expire. The tool's body runs only once the answer is in.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

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

from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.tools.request_state import use_up
from mcp_serving.tools.threads import DjangoThreads, declare, resolved_hints, signature_with

_ANSWER = "confirmation_"
_CONTEXT = "context_of_the_question_"


class Confirmation(BaseModel):
    """The form of a question that is answered by accepting it: it has no fields."""


Answer = AcceptedElicitation[Confirmation] | DeclinedElicitation | CancelledElicitation


def gated(
    function: Callable[..., Any], name: str, confirm: str | Callable[..., Any], threads: DjangoThreads
) -> Callable[..., Awaitable[Any]]:
    """``function`` with the gate before it.

    Args:
        function: the tool.
        name: what the tool is called.
        confirm: the question: a format string over the tool's arguments, or a callable (sync or async)
            that takes some of them by name.
        threads: where sync functions run.

    Raises:
        ValueError: the question speaks of an argument that the tool does not have.
    """
    signature = signature_with(function, resolved_hints(function))
    ask = _question(signature, name, confirm, threads)

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        answer: Answer = kwargs.pop(_ANSWER)
        if isinstance(answer, DeclinedElicitation):
            raise UserDeclined(f"The user said no to {name}: nothing was done. Do not call it again unasked.")
        if isinstance(answer, CancelledElicitation):
            raise UserCanceled(f"The user closed the question about {name} unanswered: nothing was done.")
        if not await use_up(threads):
            raise UserDeclined(f"This answer to the question about {name} was used before: call it anew to be asked.")
        return await threads.call(function, *args, **kwargs)

    parameters = [
        *signature.parameters.values(),
        inspect.Parameter(_ANSWER, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Answer, Resolve(ask)]),
    ]
    declare(run, signature.replace(parameters=parameters))
    return run


def _question(
    tool: inspect.Signature, name: str, confirm: str | Callable[..., Any], threads: DjangoThreads
) -> Callable[..., Awaitable[Elicit[Confirmation]]]:
    """The resolver that asks: it takes the arguments that the question speaks of, and the context."""
    if callable(confirm):
        wanted = list(inspect.signature(confirm).parameters)
    else:
        wanted = [_root(field) for _, field, _, _ in string.Formatter().parse(confirm) if field is not None]
    unknown = [each for each in wanted if each not in tool.parameters]
    if unknown:
        raise ValueError(
            f"The question of tool {name!r} speaks of {', '.join(map(repr, unknown))}, "
            f"but its arguments are {', '.join(map(repr, tool.parameters)) or 'none'}."
        )

    async def ask(**arguments: Any) -> Elicit[Confirmation]:
        _must_be_askable(arguments.pop(_CONTEXT), name)
        text = await threads.call(confirm, **arguments) if callable(confirm) else confirm.format(**arguments)
        return Elicit(str(text), Confirmation)

    ask.__qualname__ = f"confirm {name}"  # its name on the wire: the same in every worker
    wanted = list(dict.fromkeys(wanted))
    parameters = [
        inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context),
        *(tool.parameters[each].replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in wanted),
    ]
    declare(ask, inspect.Signature(parameters, return_annotation=Elicit[Confirmation]))
    return ask


def _root(field: str) -> str:
    """The argument that a replacement field such as ``order.number`` or ``lines[0]`` begins with."""
    return field.split(".")[0].split("[")[0]


def _must_be_askable(ctx: Context[Any, Any], name: str) -> None:
    """Before anything else: where nobody can be asked, the call fails, at once.

    Raises:
        NoElicitation: says what has to change.
    """
    by_round_trip = ctx.protocol_version is not None and is_version_at_least(ctx.protocol_version, "2026-07-28")
    if not by_round_trip and not ctx.session.can_send_request:
        raise NoElicitation(
            f"{name} asks the user first, and cannot ask a client of protocol {ctx.protocol_version} through this "
            "handler: it needs StreamableHTTPHandler(stateless_http=False, json_response=False), or a client of "
            "2026-07-28. Nothing was done."
        )
    capabilities = ctx.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        raise NoElicitation(
            f"{name} asks the user first, and this client cannot ask: it does not declare the elicitation "
            "capability (form). Nothing was done."
        )
