"""What tools, resources and prompts return, as the templates show it."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import dataclass, field
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

MOST_CHARACTERS = 50_000
"""Of a text that a page shows at once; the rest follows on demand."""

MOST_ROWS = 200
"""Of a table that a page shows."""

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml", "image/bmp")
"""Formats that browsers show. In an ``img``, an SVG runs no script."""


@dataclass(frozen=True)
class Part:
    """One thing to show.

    Args:
        kind: "text", "json", "table", "image", "audio", "video", "html", "link" or "binary".
        text: the beginning of a text.
        left_out: how many characters are not in ``text``.
        source: the ``data:`` URL of a picture, sound or video.
        size: bytes of binary data.
        pointer: where the whole text is in the JSON of the answer, as keys with dots between them.
    """

    kind: str
    mime_type: str = ""
    text: str = ""
    left_out: int = 0
    source: str = ""
    size: int = 0
    uri: str = ""
    title: str = ""
    description: str = ""
    pointer: str = ""
    data: Any = None
    rows: list[list[str]] = field(default_factory=list)

    @property
    def is_web_address(self) -> bool:
        return self.uri.startswith(("http://", "https://"))


def part_of_block(block: ContentBlock, pointer: str) -> Part:
    """A content block of a tool's result or of a prompt's message."""
    match block:
        case TextContent():
            return _text("text", "text/plain", block.text, pointer=f"{pointer}.text")
        case ImageContent() | AudioContent():
            return _binary(block.mime_type, block.data)
        case ResourceLink():
            return Part(
                "link",
                mime_type=block.mime_type or "",
                uri=str(block.uri),
                title=block.title or block.name,
                description=block.description or "",
            )
        case EmbeddedResource():
            return part_of_resource(block.resource, f"{pointer}.resource")


def part_of_resource(contents: TextResourceContents | BlobResourceContents, pointer: str) -> Part:
    """A viewer for the MIME type of a resource."""
    uri, mime_type = str(contents.uri), (contents.mime_type or "").lower()
    if isinstance(contents, BlobResourceContents):
        return _binary(mime_type or "application/octet-stream", contents.blob, uri=uri)
    kind = mime_type.partition(";")[0].strip()
    pointer = f"{pointer}.text"
    if kind == "application/json" or kind.endswith("+json"):
        try:
            data = json.loads(contents.text)
        except ValueError:
            return _text("text", mime_type, contents.text, pointer=pointer, uri=uri)
        return _text("json", mime_type, contents.text, pointer=pointer, uri=uri, data=data)
    if kind == "text/csv":
        rows = [row for row, _ in zip(csv.reader(io.StringIO(contents.text)), range(MOST_ROWS + 1), strict=False)]
        return _text("table", mime_type, contents.text, pointer=pointer, uri=uri, rows=rows)
    if kind == "text/html":
        return _text("html", mime_type, contents.text, pointer=pointer, uri=uri)
    if kind == "image/svg+xml":
        encoded = base64.b64encode(contents.text.encode()).decode()
        return Part("image", mime_type, source=f"data:{kind};base64,{encoded}", size=len(contents.text), uri=uri)
    return _text("text", mime_type or "text/plain", contents.text, pointer=pointer, uri=uri)


def _text(kind: str, mime_type: str, text: str, **more: Any) -> Part:
    left_out = max(0, len(text) - MOST_CHARACTERS)
    return Part(kind, mime_type, text=text[:MOST_CHARACTERS], left_out=left_out, **more)


def _binary(mime_type: str, data: str, uri: str = "") -> Part:
    size = len(data) * 3 // 4 - data[-2:].count("=")
    source = f"data:{mime_type};base64,{data}"
    if mime_type in IMAGES:
        return Part("image", mime_type, source=source, size=size, uri=uri)
    for kind in ("audio", "video"):
        if mime_type.startswith(f"{kind}/"):
            return Part(kind, mime_type, source=source, size=size, uri=uri)
    return Part("binary", mime_type, size=size, uri=uri)
