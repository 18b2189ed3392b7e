"""A write tool asks the user before it acts.

The question is MCP elicitation; it does not check authorization. It is a resolver of the SDK. The SDK asks in the
way of the client's protocol version, and binds the answer to the tool, its arguments and the user. The answer
expires. The tool's function runs only after the answer has arrived.
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
from mcp_types import ElicitResult
from mcp_types.version import is_version_at_least
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mcp_serving import current_request
from mcp_serving.errors import NoElicitation, UserCanceled, UserDeclined
from mcp_serving.threads import DjangoThreads
from mcp_serving.tools.declarations import ANSWER, CAN_ASK, Confirm, arguments_in_question, check_write_tool
from mcp_serving.tools.functions import set_signature, signature_with_hints, type_hints
from mcp_serving.tools.request_state import ask_about, use_answer

_CONTEXT = "context_of_the_question_"


class Confirmation(BaseModel):
    """The form of the question. It has no fields: the user accepts or declines it."""


_FORM: dict[str, Any] = {"type": "object", "properties": {}}

Answer = AcceptedElicitation[Confirmation] | DeclinedElicitation | CancelledElicitation


def with_confirmation(
    function: Callable[..., Any], name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Any]]:
    """``function``, which runs after the user has confirmed the call.

    Args:
        function: the tool.
        name: of the tool.
        confirm: the question: a format string over the tool's arguments, or a callable (sync or async)
            that takes some of them by name.
        threads: in which sync functions run.

    Raises:
        TypeError: the question is neither text nor callable.
        ValueError: the question uses an argument that the tool does not have, or the tool has an argument that
            a write tool cannot have.
    """
    check_write_tool(function, name, confirm)
    tool = signature_with_hints(function, type_hints(function))

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        del arguments[CAN_ASK]
        answer = unwrapped(arguments.pop(ANSWER))
        await use_answer(name, threads)
        check_accepted(answer, name)
        return await threads.call(function, **arguments)

    set_signature(run, confirmed_signature(tool, name, _question(tool, name, confirm, threads)))
    return run


def unwrapped(answer: Answer) -> Answer:
    """The user's answer, which the SDK wraps as the result of a resolver if ``asked`` has returned it."""
    inner: Any = answer.data if isinstance(answer, AcceptedElicitation) else answer
    return answer if isinstance(inner, Confirmation) else inner


def check_accepted(answer: Answer, name: str) -> None:
    """Go on only if the user said yes.

    Raises:
        UserDeclined, UserCanceled: the user said no, or closed the question.
    """
    if isinstance(answer, DeclinedElicitation):
        raise UserDeclined(
            f"The user said no to {name}: nothing was done. Do not call it again unless the user asks for it."
        )
    if isinstance(answer, CancelledElicitation):
        raise UserCanceled(
            f"The user closed the question about {name} without an answer: nothing was done. "
            "Ask what the user wants before calling it again."
        )


def _check_has_no_alias(tool: inspect.Signature, name: str) -> None:
    """Refuse an argument with an alias: the SDK passes arguments to resolvers under the clients' names for them."""
    for parameter in tool.parameters.values():
        for field in (parameter.default, *get_args(parameter.annotation)):
            if isinstance(field, FieldInfo) and field.alias not in (None, parameter.name):
                raise ValueError(
                    f"Argument {parameter.name!r} of write tool {name!r} has the alias {field.alias!r}; "
                    "the arguments of a write tool have no aliases. Rename the argument."
                )


def confirmed_signature(tool: inspect.Signature, name: str, question: Callable[..., Any]) -> inspect.Signature:
    """The tool's signature, with two resolved parameters around its own; the SDK resolves them in this order.

    Whether the user can be asked is checked before the tool's own resolvers run. The question comes last.

    Raises:
        ValueError: an argument has an alias.
    """
    _check_has_no_alias(tool, name)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(CAN_ASK, keyword, annotation=Annotated[None, Resolve(_can_ask(name))]),
        *(parameter.replace(kind=keyword) for parameter in tool.parameters.values()),
        inspect.Parameter(ANSWER, keyword, annotation=Annotated[Answer, Resolve(question)]),
    ]
    return tool.replace(parameters=parameters)


# The question


def _question(
    tool: inspect.Signature, name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Any]]:
    """The resolver that asks; it takes the arguments that the question uses."""
    used = arguments_in_question(tool, name, confirm)

    async def ask(**arguments: Any) -> Elicit[Confirmation] | Answer:
        text = await question_text(confirm, name, threads, arguments)
        ask_about(name)
        return await asked(text)

    ask.__qualname__ = f"confirm {name}"  # its name in the protocol: the same in every worker
    parameters = [tool.parameters[each].replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in used]
    set_signature(ask, inspect.Signature(parameters, return_annotation=Elicit[Confirmation]))
    return ask


async def question_text(confirm: Confirm, name: str, threads: DjangoThreads, arguments: dict[str, Any]) -> str:
    """The text of a question.

    Raises:
        ValueError: it is empty.
    """
    # The format string is the developer's. The client's values are only inserted, never parsed as a format.
    text = await threads.call(confirm, **arguments) if callable(confirm) else confirm.format(**arguments)
    if text is None or not str(text).strip():
        raise ValueError(f"The question of tool {name!r} is empty: its confirm has to return a text.")
    return str(text)


async def asked(text: str) -> Elicit[Confirmation] | Answer:
    """What a resolver returns to ask: the question, or the answer of a client up to 2025-11-25."""
    request = current_request.get().mcp_context
    if request is None or is_version_at_least(request.protocol_version, "2026-07-28"):
        return Elicit(text, Confirmation)
    return await answer_from_client(text)


async def answer_from_client(text: str) -> Answer:
    """Ask a client up to 2025-11-25, within the call.

    The SDK rejects the answer ``{"action": "accept"}`` without content, which several clients send. Here it is a yes.
    At 2026-07-28, the content is added when the answer arrives (``request_state.with_contents``).
    """
    request = current_request.get().mcp_context
    assert request is not None
    return answer_of(await request.session.elicit_form(text, _FORM, related_request_id=request.request_id))


def answer_of(result: ElicitResult) -> Answer:
    """The answer in the SDK's types for resolvers."""
    if result.action == "accept":
        return AcceptedElicitation(data=Confirmation())
    return DeclinedElicitation() if result.action == "decline" else CancelledElicitation()


# Whether the client can ask its user


def _can_ask(name: str) -> Callable[..., Awaitable[None]]:
    """The resolver that fails at once if the client cannot ask its user."""

    async def check_can_ask(**arguments: Any) -> None:
        _check_can_ask(arguments[_CONTEXT], name)

    check_can_ask.__qualname__ = f"can ask {name}"
    context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    set_signature(check_can_ask, inspect.Signature([context], return_annotation=None))
    return check_can_ask


def _check_can_ask(ctx: Context[Any, Any], name: str) -> None:
    """Refuse a call whose client cannot ask its user.

    Raises:
        NoElicitation: says what has to change.
    """
    version = ctx.protocol_version
    if version is None:
        raise NoElicitation(
            f"{name} asks the user first, and outside of an MCP request there is no client that could ask: "
            "call the function itself. Nothing was done."
        )
    in_several_round_trips = is_version_at_least(version, "2026-07-28")
    if not in_several_round_trips and not ctx.session.can_send_request:
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
