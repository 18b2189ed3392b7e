"""For the tests of a project: a client of its MCP server, in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from mcp_serving import sdk
from mcp_serving.tools.discovery import discover
from mcp_serving.tools.threads import in_callers_thread
from mcp_serving.users import local_user


class Answers:
    """What the user answers to the questions of write tools, in order.

    Args:
        *answers: True accepts, False declines, None closes the question without an answer.

    Example:
        >>> answers = Answers(True, False)
        >>> async with client(server, answers=answers) as session:
        ...     await session.call_tool("cancel_order", {"number": 7})
        >>> answers.questions
        ['Cancel order 7?']
    """

    def __init__(self, *answers: bool | None) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []
        """What was asked so far."""

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        if len(self.questions) > len(self._answers):
            raise AssertionError(f"no answer is left for the question {params.message!r}")
        answer = self._answers[len(self.questions) - 1]
        if answer is None:
            return ElicitResult(action="cancel")
        return ElicitResult(action="accept", content={}) if answer else ElicitResult(action="decline")


@asynccontextmanager
async def client(
    mcp: sdk.SDKServer,
    *,
    user: Any = None,
    answers: Answers | Iterable[bool | None] | None = None,
    mode: Literal["auto", "legacy"] = "auto",
    **options: Any,
) -> AsyncIterator[Client]:
    """A client of the SDK, connected to ``mcp`` without a process or a socket between.

    Sync tools run in the thread of the test where there is one (Django's async tests), and so in its
    transaction.

    Args:
        mcp: the server.
        user: the Django user that calls; anonymous if left out.
        answers: what the user answers to write tools; without it, the client cannot be asked.
        mode: "auto" speaks protocol 2026-07-28, "legacy" 2025-11-25.
        **options: further options of the SDK's ``Client``.

    Example:
        >>> async with client(server, user=clerk, answers=[True]) as session:
        ...     result = await session.call_tool("cancel_order", {"number": 7})
    """
    discover()
    if answers is not None and not isinstance(answers, Answers):
        answers = Answers(*answers)
    user_token, thread_token = local_user.set(user), in_callers_thread.set(True)
    try:
        async with Client(mcp, mode=mode, elicitation_callback=answers, **options) as session:
            yield session
    finally:
        in_callers_thread.reset(thread_token)
        local_user.reset(user_token)
