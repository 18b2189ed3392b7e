"""A call at the terminal: its progress, its log messages, its questions and its result."""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

import anyio
from mcp.client.context import ClientRequestContext
from mcp_types import (
    INTERNAL_ERROR,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    LoggingMessageNotificationParams,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from mcp_serving.inspection.arguments import in_words, parsed
from mcp_serving.inspection.description import indented
from mcp_serving.logs import escaped, escaped_lines

BAR_WIDTH = 24


class Watch:
    """Shows the progress and the log messages of a call on standard error.

    At a terminal, progress is a bar that is drawn over itself. Elsewhere each step is a line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn = False

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        steps = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        words = escaped(message or "")
        if not self._is_terminal:
            self._stream.write(f"progress: {steps} {words}".rstrip() + "\n")
            self._stream.flush()
            return
        done = min(max(progress / total, 0.0), 1.0) if total else 0.0
        filled = round(done * BAR_WIDTH)
        bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] " if total else ""
        line = f"{bar}{steps} {words}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._drawn = True

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        self.clear()
        text = params.data if isinstance(params.data, str) else json.dumps(params.data, ensure_ascii=False)
        self._stream.write(f"{params.level}: {escaped(text)}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the bar, so that something else can be written."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


class Questions:
    """Answers the questions of a call: the user at the terminal does, or ``--yes``.

    Args:
        yes: accept each question; its fields get their defaults.
        watch: its bar is removed before a question.
        prompt: writes a question and reads a line; raises ``EOFError`` at the end of the input.
        can_ask: whether there is a terminal to ask at.
    """

    def __init__(self, watch: Watch, *, yes: bool, can_ask: bool, prompt: Callable[[str], str]) -> None:
        self._watch = watch
        self._yes = yes
        self._can_ask = can_ask
        self._prompt = prompt

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self._watch.clear()
        if self._yes:
            return self._accepted(params)
        if not self._can_ask:
            return ErrorData(
                code=INTERNAL_ERROR,
                message=f"The user is asked {params.message!r}, and standard input is not a terminal: run the command "
                "at a terminal, or give --yes to accept.",
            )
        try:
            return await anyio.to_thread.run_sync(self._ask, params, abandon_on_cancel=True)
        except EOFError:
            return ElicitResult(action="cancel")

    def _accepted(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        content = {}
        for name, schema in _fields(params).items():
            if "default" in schema:
                content[name] = schema["default"]
            elif name in _required(params):
                return ErrorData(
                    code=INTERNAL_ERROR,
                    message=f"The question {params.message!r} needs a value for {name!r}, which --yes cannot give.",
                )
        return ElicitResult(action="accept", content=content)

    def _ask(self, params: ElicitRequestParams) -> ElicitResult:
        question = _with_table(escaped_lines(params.message))
        if not isinstance(params, ElicitRequestFormParams):
            question = f"{question}\nOpen {escaped(params.url)} in a browser. Done?"
        answer = self._prompt(f"{question} [y/N] ").strip().lower()
        if answer not in ("y", "yes"):
            return ElicitResult(action="decline")
        content: dict[str, Any] = {}
        for name, schema in _fields(params).items():
            content |= self._ask_field(params, name, schema)
        return ElicitResult(action="accept", content=content)

    def _ask_field(self, params: ElicitRequestParams, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        label = escaped(str(schema.get("title") or name))
        default = f", default {json.dumps(schema['default'], ensure_ascii=False)}" if "default" in schema else ""
        while True:
            answer = self._prompt(f"  {label} ({in_words(schema, schema)}{default}): ")
            if answer == "" and "default" in schema:
                return {name: schema["default"]}
            if answer == "" and name not in _required(params):
                return {}
            try:
                return parsed({"properties": {name: schema}}, [f"{name}={answer}"])
            except ValueError as error:
                self._watch.clear()
                sys.stderr.write(f"  {error}\n")


def _fields(params: ElicitRequestParams) -> dict[str, dict[str, Any]]:
    return dict(params.requested_schema.get("properties", {})) if isinstance(params, ElicitRequestFormParams) else {}


def _required(params: ElicitRequestParams) -> list[str]:
    return list(params.requested_schema.get("required", [])) if isinstance(params, ElicitRequestFormParams) else []


def line_from_terminal(question: str) -> str:
    """Ask on standard error, because standard output is for the result."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def text_of_result(result: CallToolResult) -> str:
    """The result of a tool as text: its content, or its structured content where there is no other."""
    if not result.content and result.structured_content is not None:
        return indented(result.structured_content)
    return "\n".join(text_of_block(block) for block in result.content)


def text_of_block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
        case ResourceLink():
            return f"[resource: {block.uri}]"
        case EmbeddedResource():
            return text_of_resource(block.resource)


def text_of_resource(contents: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(contents, TextResourceContents):
        return contents.text
    return f"[resource: {contents.uri}, {contents.mime_type}, {_size(contents.blob)} bytes]"


def _size(data: str) -> int:
    return len(base64.b64decode(data))


def _with_table(question: str) -> str:
    """The question, with the changes of a preview below each other in two columns."""
    lines = question.split("\n")
    changes = [line.removeprefix("- ").partition(": ") for line in lines if line.startswith("- ")]
    width = max((len(change) for change, _, values in changes if values), default=0)
    table = [f"  {change.ljust(width)}  {values}".rstrip() for change, _, values in changes]
    return "\n".join([*(line for line in lines if not line.startswith("- ")), *table])
