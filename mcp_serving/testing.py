"""A client of a project's MCP server for its tests, in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import INTERNAL_ERROR, CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from mcp_serving import current_request, sdk
from mcp_serving.inspection.client import ungrouped_errors
from mcp_serving.loading import discover
from mcp_serving.rate_limits.storage import memory

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

Answer = bool | dict[str, Any] | None


class Answers:
    """What the user answers to the questions of write tools, in order.

    Args:
        *answers: True accepts, False declines, and None closes the question without an answer. A dict accepts
            and is the content of a form with fields.

    Example:
        >>> answers = Answers(True, False)
        >>> async with client(server, answers=answers) as session:
        ...     await session.call_tool("cancel_order", {"number": 7})
        >>> answers.questions
        ['Cancel order 7?']
    """

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.questions: list[str] = []
        """The questions that were asked so far."""

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.questions.append(params.message)
        if self.missing:
            return ErrorData(code=INTERNAL_ERROR, message=self.missing)
        answer = self._answers[len(self.questions) - 1]
        if answer is None:
            return ElicitResult(action="cancel")
        if answer is False:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={} if answer is True else answer)

    @property
    def missing(self) -> str:
        """An error message about the question that had no answer; empty if all had one."""
        if len(self.questions) <= len(self._answers):
            return ""
        return (
            f"The tool asked {self.questions[len(self._answers)]!r}, but the test has only {len(self._answers)} "
            "answers: add one to answers=[...]."
        )


class TestClient(Client):
    """The SDK's client, as ``client`` returns it."""

    __test__ = False  # pytest takes each class whose name begins with Test for a class of tests

    async def call_tool(self, *args: Any, **kwargs: Any) -> CallToolResult:
        """The SDK's ``call_tool``.

        Raises:
            AssertionError: the tool asked more often than the test has answers.
        """
        try:
            return await super().call_tool(*args, **kwargs)
        finally:
            if isinstance(self.elicitation_callback, Answers) and self.elicitation_callback.missing:
                raise AssertionError(self.elicitation_callback.missing)


@asynccontextmanager
async def client(
    mcp: sdk.SDKServer,
    *,
    user: Any = None,
    answers: Answers | Iterable[Answer] | None = None,
    mode: Literal["auto", "legacy"] = "auto",
    **options: Any,
) -> AsyncIterator[Client]:
    """A client of the SDK, connected to ``mcp`` without another process and without a socket.

    If the test runs in ``async_to_sync``, as Django's async tests do, sync tools run in the test's thread, and so in
    its transaction. The server's lifespan is entered for the client and left after it. Several clients may be open at
    once, each with its own user. The rates of tools apply. Each new client sets the counts of all callers to zero.

    Args:
        mcp: the server.
        user: the Django user who calls; anonymous by default.
        answers: the user's answers to the questions of write tools. Without it, the client cannot be asked.
        mode: "auto" speaks protocol 2026-07-28, "legacy" 2025-11-25.
        **options: further options of the SDK's ``Client``.

    Example:
        >>> async with client(server, user=clerk, answers=[True]) as session:
        ...     result = await session.call_tool("cancel_order", {"number": 7})
    """
    discover()
    memory.forget()
    if answers is not None and not isinstance(answers, Answers):
        answers = Answers(*answers)
    if answers is not None:
        options["elicitation_callback"] = answers

    async def as_user(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        with current_request.updated(local_user=user, in_callers_thread=True):
            return await call_next(ctx)

    server = sdk.low_level(mcp)
    with ungrouped_errors() as body:
        async with (
            server.lifespan(server) as state,
            TestClient(sdk.joined(server, state, as_user), mode=mode, **options) as session,
        ):
            with body:
                yield session
