"""Tags for the templates of the console."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from mcp_serving.console.rendering.contents import Part

register = template.Library()

# Of 24 by 24, drawn with lines.
_ICONS = {
    "overview": "M4 13h7V4H4zM13 20h7v-9h-7zM4 20h7v-5H4zM13 4v5h7V4z",
    "tool": "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z",
    "file": "M6 3h8l4 4v14H6zM14 3v4h4",
    "chat": "M4 5h16v11H9l-5 4z",
    "bell": "M6 16V11a6 6 0 0 1 12 0v5l2 2H4zM10 21h4",
    "plug": "M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4",
    "eye": "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12zM12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z",
    "user": "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM4 21c0-4 4-6 8-6s8 2 8 6",
    "play": "M7 4l13 8-13 8z",
    "stop": "M6 6h12v12H6z",
    "warning": "M12 3L2 20h20zM12 10v4M12 17v.5",
    "check": "M4 12l5 5L20 6",
    "question": "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 17v.5",
    "link": "M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1",
    "lock": "M6 11h12v9H6zM8 11V8a4 4 0 0 1 8 0v3",
    "unlock": "M6 11h12v9H6zM8 11V8a4 4 0 0 1 7-2.6",
    "key": "M8 12a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 13l9-9M16 8l3 3",
    "copy": "M9 9h11v11H9zM5 15H4V4h11v1",
}


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html(
        '<svg class="icon" viewBox="0 0 24 24" width="18" height="18" aria-hidden="true"><path d="{}"/></svg>',
        _ICONS[name],
    )


@register.simple_tag
def console_sections() -> list[dict[str, str]]:
    """The entries of the navigation."""
    titles = {
        "overview": (_("Overview"), "overview"),
        "tools": (_("Tools"), "tool"),
        "resources": (_("Resources"), "file"),
        "prompts": (_("Prompts"), "chat"),
        "notifications": (_("Notifications"), "bell"),
        "connect": (_("Connect a client"), "plug"),
        "view_as": (_("View as…"), "eye"),
    }
    return [
        {"key": key, "title": title, "icon": picture, "url": reverse(f"mcp_console:{key}")}
        for key, (title, picture) in titles.items()
    ]


@register.simple_tag
def console_words() -> dict[str, str]:
    """What the scripts say."""
    return {
        "copied": _("Copied"),
        "running": _("Running…"),
        "waiting": _("Waiting for your answer."),
        "done": _("Done."),
        "failed": _("The tool failed."),
        "cancelled": _("Cancelled."),
        "refused": _("The form has errors."),
        "lost": _("The connection to the server was lost."),
        "forbidden": _("The server refused the request. Reload the page: you may have been logged out."),
        "subscribed": _("Subscribed. Waiting for notifications."),
        "notSubscribed": _("Not subscribed."),
        "ended": _("The server has ended the subscription."),
        "editAsForm": _("Edit as a form"),
        "editAsJSON": _("Edit as JSON"),
        "items": _("items"),
        "keys": _("keys"),
        "more": _("Show more"),
        "nothing": _("null"),
    }


@register.simple_tag
def query(**values: Any) -> str:
    """A query string."""
    return urlencode(values)


@register.simple_tag
def copy_button(text: str) -> SafeString:
    return format_html(
        '<button type="button" class="button icon copy" data-copy="{}" aria-label="{}" title="{}">{}</button>',
        text,
        _("Copy"),
        _("Copy"),
        icon("copy"),
    )


@register.simple_tag
def code_block(text: str) -> SafeString:
    """Preformatted text with a button that copies it."""
    return format_html(
        '<div class="code-block"><pre tabindex="0"><code>{}</code></pre>{}</div>',
        text,
        format_html(
            '<button type="button" class="button icon copy" data-copy-block aria-label="{}" title="{}">{}</button>',
            _("Copy"),
            _("Copy"),
            icon("copy"),
        ),
    )


@register.simple_tag
def text_block(part: Part) -> SafeString:
    """A text, with a button for the rest of a long one."""
    more = (
        format_html(
            '<p class="muted">{} <button type="button" class="button small" data-whole="{}">{}</button></p>',
            _("%(n)s more characters are not shown.") % {"n": f"{part.left_out:,}"},
            part.pointer,
            _("Show everything"),
        )
        if part.left_out
        else ""
    )
    return format_html("{}{}", code_block(part.text), more)


@register.simple_tag
def filter_field() -> SafeString:
    return format_html(
        '<p class="filter"><label class="visually-hidden" for="filter">{0}</label>'
        '<input id="filter" type="search" placeholder="{0}" data-filter></p>',
        _("Filter by name or description"),
    )


@register.filter
def words_of(text: str) -> list[str]:
    return text.split()


@register.filter
def as_script(text: str) -> SafeString:
    """JSON for a ``script`` element, which no text in it can end."""
    escaped = json.dumps(json.loads(text), ensure_ascii=False) if text else "null"
    table = {ord(">"): "\\u003E", ord("<"): "\\u003C", ord("&"): "\\u0026"}
    return mark_safe(escaped.translate(table))
