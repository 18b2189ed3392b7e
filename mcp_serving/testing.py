"""For the tests of a project: a client of its MCP server, in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import INTERNAL_ERROR, CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from mcp_serving import current_request, sdk
from mcp_serving.loading import discover

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

Answer = bool | dict[str, Any] | None


class Answers:
    """What the user answers to the questions of write tools, in order.

    Args:
        *answers: True accepts, False declines, None closes the question without an answer; a dict accepts
            and fills a form that has fields.

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
        """What was asked so far."""

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
        """Which question there was no answer for, in a sentence; empty if there was none."""
        if len(self.questions) <= len(self._answers):
            return ""
        return (
            f"The user was asked {self.questions[len(self._answers)]!r}, and the test has no answer for that: "
            f"it gives {len(self._answers)}."
        )


class TestClient(Client):
    """The SDK's client, for a server in the same process; ``client`` makes it."""

    __test__ = False  # not a class of tests, whatever pytest thinks of its name

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
    """A client of the SDK, connected to ``mcp`` without a process or a socket between.

    Sync tools run in the thread of the test where there is one (Django's async tests, ``async_to_sync``), and
    so in its transaction. The server's lifespan is entered for the client and left after it. Several clients
    may be open at once, each with a user of its own.

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
    if answers is not None:
        options["elicitation_callback"] = answers

    async def as_user(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        with current_request.updated(local_user=user, in_callers_thread=True):
            return await call_next(ctx)

    server = sdk.low_level(mcp)
    with _failures_as_they_are() as body:
        async with (
            server.lifespan(server) as state,
            TestClient(sdk.joined(server, state, as_user), mode=mode, **options) as session,
        ):
            with body:
                yield session


@contextmanager
def _failures_as_they_are() -> Iterator[AbstractContextManager[None]]:
    """Raise what the test raised, which the task groups of the client would wrap in groups.

    A group is no failed assertion to a test runner, and no skipped test either.
    """
    failures: list[BaseException] = []

    @contextmanager
    def body() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            failures.append(error)
            raise

    try:
        yield body()
    except BaseExceptionGroup:
        if not failures:
            raise
        raise failures[0] from None
