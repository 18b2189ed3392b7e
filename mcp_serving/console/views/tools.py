"""Tools: the list, one with its form, and a call as it happens."""

from __future__ import annotations

import json
import time
import traceback
from typing import TYPE_CHECKING, Any

import anyio
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST
from mcp import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData, InputRequiredResult

from mcp_serving import current_request
from mcp_serving.console import waiting
from mcp_serving.console.access import console_view
from mcp_serving.console.pages import catalog_for, fragment, offered_or_404, page, viewer_of
from mcp_serving.console.rendering import contents, snippets
from mcp_serving.console.rendering.questions import Questions
from mcp_serving.console.rendering.words import permission_in_words, scopes_in_words, traits
from mcp_serving.console.served import client_for, is_asgi, mounts_of_server, server
from mcp_serving.console.sse import Emit, streaming
from mcp_serving.inspection.catalog import Offered, declaration_of
from mcp_serving.inspection.description import indented

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import LoggingMessageNotificationParams

    from mcp_serving.console.rendering.forms import SchemaForm


@require_GET
@console_view
async def tool_list(request: HttpRequest) -> HttpResponse:
    viewer = await viewer_of(request)
    catalog = await catalog_for(request, viewer)
    tools = [(tool, traits(tool, declaration_of(server(), tool))) for tool in catalog.tools]
    return await page(request, "tools.html", {"tools": tools}, section="tools")


@require_GET
@console_view
async def tool_detail(request: HttpRequest, name: str) -> HttpResponse:
    viewer = await viewer_of(request)
    tool = await offered_or_404(request, viewer, "tool", name)
    declared: Any = tool.declared
    declaration = declaration_of(server(), tool)
    context = {
        "tool": tool,
        "traits": traits(tool, declaration),
        "declaration": declaration,
        "permission": await sync_to_async(permission_in_words)(declaration),
        "scopes": scopes_in_words(declaration),
        "output_schema": _json(declared.output_schema),
        "input_schema": _json(declared.input_schema),
        "form": await sync_to_async(_form)(declared.input_schema),
        "app_uri": app_uri(tool),
        "can_call": viewer.viewed is None and is_asgi(request),
    }
    return await page(request, "tool.html", context, section="tools")


def _form(schema: dict[str, Any], data: Any = None) -> SchemaForm:
    from mcp_serving.console.rendering.forms import SchemaForm  # its library takes a second to import

    return SchemaForm(schema, data)


def _arguments_from_json(text: str) -> dict[str, Any]:
    """Arguments that the user wrote as JSON.

    Raises:
        ValidationError: it is not a JSON object.
    """
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise ValidationError(_("This is not valid JSON: %(error)s") % {"error": error}) from error
    if not isinstance(arguments, dict):
        raise ValidationError(_("The arguments have to be a JSON object."))
    return arguments


def app_uri(tool: Offered) -> str | None:
    """The ``ui://`` resource that shows the results of a tool, if it has one."""
    meta: dict[str, Any] = getattr(tool.declared, "meta", None) or {}
    interface = meta.get("ui") or {}
    uri = interface.get("resourceUri") if isinstance(interface, dict) else None
    return uri if isinstance(uri, str) and uri.startswith("ui://") else None


def _json(schema: Any) -> str:
    return indented(schema) if schema else ""


@require_POST
@console_view
async def tool_call(request: HttpRequest, name: str) -> HttpResponseBase:
    """Call a tool and stream what happens; JSON with the form where it is filled in wrongly."""
    viewer = await viewer_of(request)
    if viewer.viewed is not None or not is_asgi(request):
        return HttpResponse(status=403)
    tool = await offered_or_404(request, viewer, "tool", name)
    if "waiting" in request.POST:
        return await _answer_waiting_question(request)
    if "state" in request.POST:
        return await _answer(request, tool)
    declared: Any = tool.declared
    if request.POST.get("mode") == "json":
        try:
            arguments = _arguments_from_json(request.POST.get("raw", ""))
        except ValidationError as error:
            return JsonResponse({"error": error.messages[0]})
    else:
        form = await sync_to_async(_form)(declared.input_schema, request.POST)
        if not await sync_to_async(form.is_valid)():
            return JsonResponse({"form": await fragment(request, "form/fields.html", {"form": form})})
        arguments = form.arguments
    return streaming(Call(request, tool, arguments).run)


async def _answer_waiting_question(request: HttpRequest) -> HttpResponse:
    """Answer a question in the middle of a call, whose response is still open."""
    question = waiting.find(request.POST["waiting"], request.user)
    if question is None:
        return JsonResponse(
            {"error": _("This question no longer waits here: the call has ended, or another worker runs it.")}
        )
    answers = await sync_to_async(question.questions.answers)(request.POST)
    if answers is None:
        return JsonResponse({"form": await _waiting_form(request, question)})
    question.give(answers)
    return JsonResponse({})


async def _waiting_form(request: HttpRequest, question: waiting.WaitingQuestion) -> str:
    return await fragment(request, "question.html", {"questions": question.questions, "waiting": question.id})


async def _answer(request: HttpRequest, tool: Offered) -> HttpResponseBase:
    """Go on with a call whose question the user has answered: the whole of it comes from the page."""
    try:
        questions = Questions.from_json(request.POST["questions"])
        arguments = _arguments_from_json(request.POST["sent"])
    except (ValidationError, ValueError, KeyError):
        return HttpResponse(status=400)
    answers = await sync_to_async(questions.answers)(request.POST)
    if answers is None:
        html = await fragment(request, "question.html", {"questions": questions, "sent": request.POST["sent"]})
        return JsonResponse({"form": html})
    return streaming(Call(request, tool, arguments, answers, questions.state).run)


class Call:
    """One round of a call: until its result, its error, or its next question."""

    def __init__(
        self,
        request: HttpRequest,
        tool: Offered,
        arguments: dict[str, Any],
        answers: Any = None,
        state: str | None = None,
    ) -> None:
        self._request = request
        self._tool = tool
        self._arguments = arguments
        self._answers = answers
        self._state = state
        self._failures: list[BaseException] = []

    async def run(self, emit: Emit) -> None:
        emit("request", self._snippets())
        started = time.monotonic()

        async def log(params: LoggingMessageNotificationParams) -> None:
            text = params.data if isinstance(params.data, str) else json.dumps(params.data, ensure_ascii=False)
            emit("log", {"level": params.level, "text": text})

        async def progress(done: float, total: float | None, message: str | None) -> None:
            emit("progress", {"done": done, "total": total, "message": message or ""})

        one_at_a_time = anyio.Lock()

        async def ask(context: Any, params: ElicitRequestParams) -> ElicitResult:
            async with one_at_a_time:
                with waiting.waiting(params, self._request.user) as question:
                    emit("asked", {"html": await _waiting_form(self._request, question)})
                    return await question.answer

        try:
            with current_request.updated(failures=self._failures):
                async with client_for(
                    self._request,
                    self._request.user,
                    logging_callback=log,
                    log_level="debug",
                    elicitation_callback=ask,
                ) as client:
                    result = await self._send(client, progress)
        except MCPError as error:
            await self._emit_error(emit, error.error, started)
            return
        if isinstance(result, InputRequiredResult):
            await self._emit_question(emit, result)
        else:
            await self._emit_result(emit, result, started)

    async def _send(self, client: Client, progress: Any) -> Any:
        return await client.session.call_tool(
            self._tool.name,
            self._arguments,
            progress_callback=progress,
            input_responses=self._answers,
            request_state=self._state,
            allow_input_required=True,
        )

    def _snippets(self) -> dict[str, str]:
        name, arguments = self._tool.name, self._arguments
        found = {"json": snippets.request_json(name, arguments)}
        if mounts := mounts_of_server():
            url = self._request.build_absolute_uri(mounts[0].paths[0])
            token = mounts[0].access.callers.with_token
            found["curl"] = snippets.curl(url, name, arguments, token=token)
            found["python"] = snippets.python(url, name, arguments, token=token)
        return found

    async def _emit_result(self, emit: Emit, result: CallToolResult, started: float) -> None:
        shown = {
            "result": result,
            "parts": [contents.part_of_block(each, f"result.content.{n}") for n, each in enumerate(result.content)],
            "has_structure": result.structured_content is not None,
            "milliseconds": round((time.monotonic() - started) * 1000),
            "traceback": self._traceback(),
            "app_uri": app_uri(self._tool) if not result.is_error else None,
        }
        html = await fragment(self._request, "result.html", shown)
        emit("result", {"html": html, "json": snippets.response_json(result), "isError": result.is_error})

    async def _emit_error(self, emit: Emit, error: ErrorData, started: float) -> None:
        milliseconds = round((time.monotonic() - started) * 1000)
        shown = {"error": error, "milliseconds": milliseconds, "traceback": self._traceback()}
        html = await fragment(self._request, "result.html", shown)
        emit("result", {"html": html, "json": snippets.error_json(error), "isError": True})

    async def _emit_question(self, emit: Emit, result: InputRequiredResult) -> None:
        questions = Questions.of(result)
        sent = json.dumps(self._arguments)
        html = await fragment(self._request, "question.html", {"questions": questions, "sent": sent})
        emit("question", {"html": html, "json": snippets.response_json(result)})

    def _traceback(self) -> str:
        """What the developer would find in the log: with DEBUG only, and for staff."""
        if not (settings.DEBUG and getattr(self._request.user, "is_staff", False) and self._failures):
            return ""
        return "".join(traceback.format_exception(self._failures[-1]))
