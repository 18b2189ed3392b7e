"""The questions of a call, as a form; and the answers of the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult, InputResponse
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from mcp_serving.console.rendering.forms import SchemaForm

_REQUEST = TypeAdapter[ElicitRequest](ElicitRequest)


@dataclass
class Question:
    """One question: a text, and a form where the schema asks for values."""

    key: str
    request: ElicitRequest
    form: SchemaForm | None

    @property
    def message(self) -> str:
        return self.request.params.message

    @property
    def url(self) -> str | None:
        """The page to open, for a question that is answered elsewhere."""
        return getattr(self.request.params, "url", None)


@dataclass
class Questions:
    """All questions of one round of a call.

    Args:
        state: what the server wants to have back with the answers.
        unanswerable: requests that only a model, or a file system, could answer.
    """

    state: str | None
    asked: list[Question]
    unanswerable: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, result: InputRequiredResult) -> Questions:
        """The questions of a result."""
        requests = result.input_requests or {}
        asked = {key: each for key, each in requests.items() if isinstance(each, ElicitRequest)}
        unanswerable = [str(each.method) for each in requests.values() if not isinstance(each, ElicitRequest)]
        return cls(result.request_state, _with_forms(asked), unanswerable)

    @classmethod
    def of_request(cls, key: str, request: ElicitRequest) -> Questions:
        """One question in the middle of a call."""
        return cls(None, _with_forms({key: request}))

    @classmethod
    def from_json(cls, text: str) -> Questions:
        """What ``as_json`` returned.

        Raises:
            ValueError: it is something else.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("asked"), dict):
            raise ValueError("these are no questions")
        asked = {str(key): _REQUEST.validate_python(each) for key, each in found["asked"].items()}
        state = found.get("state")
        return cls(state if isinstance(state, str) else None, _with_forms(asked))

    @property
    def as_json(self) -> str:
        """For the page, which sends it back with the answers: the call may go on in another worker."""
        asked = {each.key: each.request.model_dump(mode="json", by_alias=True) for each in self.asked}
        return json.dumps({"state": self.state, "asked": asked})

    def answers(self, data: Mapping[str, Any]) -> dict[str, InputResponse] | None:
        """The answers of the user; None where a form is filled in wrongly: its errors are then in the form."""
        action = data.get("action")
        if action == "decline":
            return {each.key: ElicitResult(action="decline") for each in self.asked}
        if action != "accept":
            return {each.key: ElicitResult(action="cancel") for each in self.asked}
        self.asked = _with_forms({each.key: each.request for each in self.asked}, data)
        filled = [each.form for each in self.asked if each.form is not None]
        if not all([form.is_valid() for form in filled]):  # noqa: C419 - each form gets its errors
            return None
        return {
            each.key: ElicitResult(action="accept", content=each.form.arguments if each.form else {})
            for each in self.asked
        }


def _with_forms(asked: Mapping[str, ElicitRequest], data: Mapping[str, Any] | None = None) -> list[Question]:
    from mcp_serving.console.rendering.forms import SchemaForm  # its library takes a second to import

    found = []
    for number, (key, request) in enumerate(asked.items()):
        params = request.params
        form = None
        if isinstance(params, ElicitRequestFormParams) and params.requested_schema.get("properties"):
            schema = {"type": "object", **params.requested_schema}
            form = SchemaForm(schema, data, prefix=f"question-{number}", titles=True)
        found.append(Question(key, request, form))
    return found
