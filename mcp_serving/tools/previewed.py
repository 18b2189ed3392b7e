"""A write tool whose question shows what it would change.

The tool runs in a transaction before the question, and is rolled back. After "yes" it runs again, and is committed
only if it changes the same. The state that travels to the client holds a digest of the preview, not its data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from django.utils.translation import gettext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit
from mcp_types import ElicitResult

from mcp_serving.preview.attempt import Attempt, attempt
from mcp_serving.threads import DjangoThreads, without_atomic_requests
from mcp_serving.tools.confirmation import (
    Answer,
    Confirmation,
    answer_from_client,
    answer_of,
    asked,
    check_accepted,
    confirmed_signature,
    question_text,
    unwrapped,
)
from mcp_serving.tools.declarations import ANSWER, CAN_ASK, Confirm, arguments_in_question, check_write_tool
from mcp_serving.tools.functions import set_signature, signature_with_hints, type_hints
from mcp_serving.tools.request_state import Round, ask_about, current_round, use_answer

MOST_QUESTIONS = 3
"""How often one call asks, if the data changes between the preview and the answer."""

_CONTEXT = "context_of_the_preview_"


def with_preview(
    function: Callable[..., Any], name: str, confirm: Confirm, threads: DjangoThreads
) -> Callable[..., Awaitable[Any]]:
    """``function``, which runs for good after the user has seen its changes and has confirmed them.

    Args:
        function: the tool; it must be sync.
        name: of the tool.
        confirm: the question, which stands above the changes.
        threads: in which the tool runs.

    Raises:
        TypeError: the function is async, or the question is neither text nor callable.
        ValueError: as for ``with_confirmation``.
    """
    check_write_tool(function, name, confirm, preview=True)
    tool = signature_with_hints(function, type_hints(function))
    previewed = _PreviewedTool(function, name, confirm, threads, arguments_in_question(tool, name, confirm))

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        del arguments[CAN_ASK]
        return await previewed.run(unwrapped(arguments.pop(ANSWER)), arguments)

    async def ask(**arguments: Any) -> Elicit[Confirmation] | Confirmation | Answer:
        return await previewed.ask(arguments.pop(_CONTEXT), arguments)

    ask.__qualname__ = previewed.key.partition(":")[2]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in tool.parameters.values()]
    context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    returns = Elicit[Confirmation] | Confirmation
    set_signature(ask, inspect.Signature([context, *parameters], return_annotation=returns))
    set_signature(run, confirmed_signature(tool, name, ask))
    return run


class _PreviewedTool:
    """One tool; the progress of a call is in its ``Round``."""

    def __init__(
        self, function: Callable[..., Any], name: str, confirm: Confirm, threads: DjangoThreads, in_question: list[str]
    ) -> None:
        self.key = f"{__name__}:confirm {name}"
        """The name of the question in the protocol: the same in every worker."""
        self._function = function
        self._name = name
        self._confirm = confirm
        self._threads = threads
        self._in_question = in_question

    async def ask(
        self, ctx: Context[Any, Any], arguments: dict[str, Any]
    ) -> Elicit[Confirmation] | Confirmation | Answer:
        """Ask with a preview. From 2026-07-28 on, the request that brings the answer also runs the tool for good."""
        now = current_round()
        ask_about(self._name)
        answer = (ctx.input_responses or {}).get(self.key)
        if self._name not in now.previews or not isinstance(answer, ElicitResult):
            return await asked(await self._question(now, await self._attempt(arguments), arguments))
        await use_answer(self._name, self._threads)
        check_accepted(answer_of(answer), self._name)
        made = await self._attempt(arguments, now.previews[self._name][0])
        if made.committed:
            now.results[self._name] = made.result
            return Confirmation()
        now.renew()
        return Elicit(await self._question(now, made, arguments), Confirmation)

    async def run(self, answer: Answer, arguments: dict[str, Any]) -> Any:
        """The result of the tool, which up to 2025-11-25 runs for good only now."""
        now = current_round()
        if self._name in now.results:
            return now.results.pop(self._name)
        while True:
            await use_answer(self._name, self._threads)
            check_accepted(answer, self._name)
            made = await self._attempt(arguments, now.previews[self._name][0])
            if made.committed:
                return made.result
            answer = await answer_from_client(await self._question(now, made, arguments))

    async def _attempt(self, arguments: dict[str, Any], expected: str | None = None) -> Attempt:
        # An attempt has transactions of its own.
        run = without_atomic_requests(functools.partial(attempt, self._function, expected=expected))
        made: Attempt = await self._threads.call(run, **arguments)
        return made

    async def _question(self, now: Round, made: Attempt, arguments: dict[str, Any]) -> str:
        """The text of the question, with the changes of an attempt.

        Raises:
            ToolError: the user was asked three times about this call.
        """
        _, asked = now.previews.get(self._name, ("", 0))
        if asked == MOST_QUESTIONS:
            raise ToolError(
                f"{self._name} would change something else than the user was shown, {asked} times: nothing was done."
            )
        now.previews[self._name] = made.digest, asked + 1
        used = {each: arguments[each] for each in self._in_question}
        lines = [await question_text(self._confirm, self._name, self._threads, used)]
        if asked:
            # The number makes each text another one: the SDK takes an answer only for the text that was asked.
            lines.append(gettext("The data has changed since you were asked. Question %(n)d:") % {"n": asked + 1})
        if made.lines:
            lines += [gettext("This would"), *(f"- {each}" for each in made.lines)]
        else:
            lines.append(gettext("This would change nothing."))
        return "\n".join(lines)
