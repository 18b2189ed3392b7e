"""Questions in the middle of a call: the call waits in this process until its user has answered."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from mcp_serving.console.rendering.questions import Questions

_KEY = "question"


@dataclass
class WaitingQuestion:
    """One question and the answer that the call waits for.

    Attributes:
        questions: the question as the page shows it. The form has the ``id`` of the question.
        user_id: the id of the user who called the tool. Nobody else may answer.
    """

    questions: Questions
    user_id: Any
    id: str = field(default_factory=secrets.token_urlsafe)
    answer: asyncio.Future[ElicitResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def give(self, answers: dict[str, Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(answers[_KEY])


_waiting: dict[str, WaitingQuestion] = {}


@contextmanager
def waiting(params: ElicitRequestParams, user: Any) -> Iterator[WaitingQuestion]:
    """Keep a question until the block ends."""
    assert isinstance(params, ElicitRequestFormParams | ElicitRequestURLParams)
    question = WaitingQuestion(Questions.of_request(_KEY, ElicitRequest(params=params)), user.pk)
    _waiting[question.id] = question
    try:
        yield question
    finally:
        del _waiting[question.id]


def find(id: str, user: Any) -> WaitingQuestion | None:  # noqa: A002
    """The question of this user that waits in this process; None if there is none."""
    found = _waiting.get(id)
    return found if found is not None and found.user_id == user.pk else None
