"""The page that a browser gets at the MCP endpoint.

For a caller with access, it names the server, links to the console and has the configuration of each MCP client. For
everybody else, it offers the login, and does not tell that there is a server of some name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.apps import apps
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from starlette.responses import HTMLResponse

from mcp_serving.inspection.client_configurations import CLIENTS, Endpoint, slug
from mcp_serving.security.login import has_view, login_url
from mcp_serving.security.resource_metadata import resource_url, site_url

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server as LowLevelServer
    from starlette.types import Message, Scope, Send

_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 4rem auto; padding: 0 1rem }}
pre {{ overflow-x: auto; padding: .75rem 1rem; border: 1px solid #8886; border-radius: 8px; font-size: .85rem }}
summary {{ cursor: pointer; padding: .25rem 0 }}
</style>
<h1>{title}</h1>
{body}
</html>
"""

_HEADERS = {
    "vary": "accept, cookie",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
}


def is_wanted(scope: Scope) -> bool:
    """Whether a browser asks: it accepts HTML, and no stream of events."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept").lower()
    return b"text/html" in accept and b"text/event-stream" not in accept


def page_about(server: LowLevelServer[Any], scope: Scope, *, needs_token: bool) -> HTMLResponse:
    """The page for a caller with access."""
    url = resource_url(scope)
    endpoint = Endpoint(url, "YOUR_TOKEN" if needs_token and not apps.is_installed("mcp_serving.oauth") else None)
    name = slug(server.name)
    clients = format_html_join(
        "\n",
        "<details><summary>{}</summary><p><code>{}</code></p><pre>{}</pre></details>",
        (
            (client.label, client.file_in_words or client.path().as_posix(), client.text(name, endpoint))
            for client in CLIENTS.values()
        ),
    )
    body = format_html(
        "<p>{}</p>\n<p><code>{}</code></p>\n{}<h2>{}</h2>\n{}",
        _("This is an MCP server, for an AI client rather than a browser. Its transport is streamable HTTP."),
        url,
        _console_link(scope),
        _("Configurations"),
        clients,
    )
    return _page(server.title or server.name, body)


def with_login(scope: Scope, send: Send) -> Send:
    """``send``, for a browser: if the caller has no access, a page offers the login instead of one line of text."""
    replaced = False

    async def send_page(message: Message) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] == 401:
            replaced = True
            page = _login_page(scope)
            challenge = [(name, value) for name, value in message["headers"] if name == b"www-authenticate"]
            await send({**message, "headers": [*page.raw_headers, *challenge]})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else page.body})
        elif not replaced:
            await send(message)

    return send_page


def _login_page(scope: Scope) -> HTMLResponse:
    user = scope.get("user")
    if user is not None and user.is_authenticated:
        told = _("You are logged in. This address, however, is for programs that send a token.")
        return _page(_("For programs"), format_html("<p>{}</p>\n{}", told, _console_link(scope)))
    told = _("This address is for programs.")
    login = SafeString("")
    if apps.is_installed("django.contrib.auth") and has_view(address := login_url()):
        back = urlencode({"next": resource_url(scope).removeprefix(site_url(scope)) or "/"})
        separator = "&" if "?" in address else "?"
        login = format_html('<p><a href="{}{}{}">{}</a></p>', address, separator, back, _("Log in"))
    return _page(_("For programs"), format_html("<p>{}</p>\n{}", told, login))


def _console_link(scope: Scope) -> SafeString:
    """A link to the console where it is installed: who may enter is found out there."""
    if not apps.is_installed("mcp_serving.console"):
        return SafeString("")
    try:
        address = site_url(scope) + reverse("mcp_console:overview")
    except NoReverseMatch:
        return SafeString("")
    return format_html('<p><a href="{}">{}</a></p>\n', address, _("Open the console"))


def _page(title: str, body: SafeString) -> HTMLResponse:
    return HTMLResponse(format_html(_PAGE, language=get_language() or "en", title=title, body=body), headers=_HEADERS)
