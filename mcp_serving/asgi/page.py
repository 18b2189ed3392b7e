"""What a person sees who opens the MCP endpoint in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.html import format_html
from starlette.responses import HTMLResponse

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.types import Scope

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{name}: MCP server</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem }}</style>
<h1>{name}</h1>
<p>This address is an <a href="https://modelcontextprotocol.io">MCP</a> server, for an AI client rather than a
browser. To use it, add the address of this page to your client as a server of the kind
<q>streamable HTTP</q>.</p>
</html>
"""


def is_wanted(scope: Scope) -> bool:
    """Whether a browser asks: it accepts HTML, and no stream of events."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept").lower()
    return b"text/html" in accept and b"text/event-stream" not in accept


def page_about(server: LowLevelServer[Any]) -> HTMLResponse:
    """The page of this server."""
    return HTMLResponse(format_html(_PAGE, name=server.title or server.name), headers={"vary": "accept"})
