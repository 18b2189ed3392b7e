"""Who may enter the console, what a browser may do with its pages, and what WSGI cannot do; without a process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django.utils import translation

from tests.project import settings_with_console
from tests.support import in_django
from tests.support.console import staff
from tests.support.harness import ROOT, environment

CHANGED = ("INSTALLED_APPS", "ROOT_URLCONF", "MCP_SERVING", "MIDDLEWARE", "TEMPLATES", "STATIC_URL", "ALLOWED_HOSTS")
SETTINGS = {name: getattr(settings_with_console, name) for name in CHANGED}


@pytest.fixture(autouse=True)
def site(users_of_its_own: None) -> Iterator[None]:
    staff("clerk", "root")
    with override_settings(**SETTINGS):
        import tests.project.console_asgi  # noqa: F401 - the pages show its handler

        yield


def get(path: str, user: str | None = None, **options: Any) -> Any:
    """A page of the console, served over ASGI."""
    browser = AsyncClient()

    async def work() -> Any:
        if user is not None:
            await browser.aforce_login(await _user(user))
        return await browser.get(f"/mcp-console/{path}", **options)

    return async_to_sync(work)()


async def _user(name: str) -> Any:
    from asgiref.sync import sync_to_async

    return await sync_to_async(in_django.user)(name)


PATHS = [
    "",
    "tools/",
    "tools/who/",
    "resources/",
    "prompts/",
    "notifications/",
    "connect/",
    "apps/?uri=ui://clock/app.html",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_visitor_is_sent_to_the_login_of_the_site(path: str) -> None:
    answer = get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/?next=/mcp-console/")
    with override_settings(LOGIN_URL="/mcp-console/connect/"):  # any page that exists
        assert get(path)["Location"].startswith("/mcp-console/connect/?next=")


@pytest.mark.parametrize("path", PATHS)
def test_a_user_who_is_not_staff_is_refused(path: str) -> None:
    assert get(path, "ann").status_code == 403


def test_every_page_works_with_atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    for path in [*PATHS, "view-as/"]:
        assert get(path, "root").status_code == 200, path


def test_a_setting_says_who_may_enter_instead() -> None:
    configured = {**SETTINGS["MCP_SERVING"], "CONSOLE_ACCESS": "tests.project.console_wsgi.only_bob"}
    with override_settings(MCP_SERVING=configured):
        assert get("", "bob").status_code == 200
        assert get("", "clerk").status_code == 403


@pytest.mark.parametrize("path", PATHS[:-1])
def test_each_page_forbids_caches_frames_of_others_and_inline_scripts(path: str) -> None:
    answer = get(path, "clerk")
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "frame-ancestors 'self'" in policy
    html = answer.content.decode()
    scripts = re.findall(r"<script(?![^>]*\bsrc=)([^>]*)>", html)
    assert all('type="application/json"' in each for each in scripts)
    assert not re.search(r"\s(style|on\w+)=\"", html)


def test_an_app_is_served_with_an_origin_of_its_own() -> None:
    policy = get("apps/?uri=ui://clock/app.html", "clerk")["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts allow-forms; default-src 'none';")
    assert "connect-src 'none'" in policy
    assert get("apps/?uri=console://page", "clerk").status_code == 404


def test_a_download_is_never_shown_in_the_site() -> None:
    answer = get("resources/download/?uri=console://page", "clerk")
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"] == 'attachment; filename="page"'
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["tools/who/call/", "connect/", "view-as/", "apps/request/"])
def test_a_request_that_changes_something_needs_the_csrf_token(path: str) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(in_django.user("root"))
    assert browser.post(f"/mcp-console/{path}", {}).status_code == 403


def test_a_call_needs_the_permission_of_its_tool() -> None:
    browser = AsyncClient()

    async def work() -> Any:
        await browser.aforce_login(await _user("root"))
        found = await browser.get("/mcp-console/tools/delete/")
        await browser.aforce_login(await _user("bob"))
        return found.status_code, (await browser.post("/mcp-console/tools/delete/call/", {"name": "x"})).status_code

    configured = {**SETTINGS["MCP_SERVING"], "CONSOLE_ACCESS": "tests.project.console_wsgi.everybody"}
    with override_settings(MCP_SERVING=configured):
        assert async_to_sync(work)() == (200, 404)


def test_without_debug_not_even_staff_see_the_traceback() -> None:
    browser = AsyncClient()

    async def work() -> str:
        await browser.aforce_login(await _user("root"))
        answer = await browser.post("/mcp-console/tools/broken/call/", {"mode": "json", "raw": "{}"})
        return "".join([part.decode() async for part in answer.streaming_content])

    for debug in (False, True):
        with override_settings(DEBUG=debug):
            shown = async_to_sync(work)()
        assert "Error executing tool broken" in shown
        assert ("the secret of the log" in shown) is debug


def test_the_overview_shows_what_the_system_checks_found_and_the_channel_layer() -> None:
    layers = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    with override_settings(CHANNEL_LAYERS=layers, SECRET_KEY="short"):
        text = get("", "clerk").content.decode()
    assert "channels.layers.InMemoryChannelLayer" in text
    assert "this process only" in text
    found = re.findall(r"<code>(mcp_[a-z]+\.[WEI]\d+)</code>", text)
    assert found, text


def test_where_users_can_sign_in_the_connect_page_says_so() -> None:
    with_oauth = [*SETTINGS["INSTALLED_APPS"], "oauth2_provider", "mcp_serving.oauth"]
    sentence = "Clients that can sign in need the address and nothing else"
    assert sentence not in get("connect/", "clerk").content.decode()
    with override_settings(INSTALLED_APPS=with_oauth):
        assert sentence in get("connect/", "clerk").content.decode()


# WSGI


def test_under_wsgi_the_lists_are_there_and_the_page_says_what_is_not() -> None:
    browser = Client()  # asks as WSGI does
    browser.force_login(in_django.user("clerk"))
    for path in ("", "tools/", "tools/who/", "resources/", "prompts/", "notifications/", "connect/"):
        answer = browser.get(f"/mcp-console/{path}")
        assert answer.status_code == 200
        assert "This site is served over WSGI." in answer.content.decode()
    assert "delete" in browser.get("/mcp-console/tools/").content.decode()
    assert (
        '<button class="button primary" type="submit" disabled>'
        in browser.get("/mcp-console/tools/who/").content.decode()
    )
    assert browser.post("/mcp-console/tools/who/call/").status_code == 403
    assert browser.get("/mcp-console/notifications/stream/").status_code == 403


# Installation


def test_a_project_that_lacks_something_is_told_by_a_system_check() -> None:
    def found() -> set[str]:
        return {str(each.id) for each in checks.run_checks(tags=["mcp_console"])}

    assert found() == set()
    without = [app for app in SETTINGS["INSTALLED_APPS"] if app != "mcp_serving.console.form_library"]
    with override_settings(INSTALLED_APPS=without, MIDDLEWARE=[], TEMPLATES=[], MCP_SERVING={}):
        assert found() == {"mcp_console.E002", "mcp_console.E003", "mcp_console.E004", "mcp_console.E005"}


@pytest.mark.process
def test_a_project_without_the_app_never_imports_it() -> None:
    code = """
import sys
import tests.project.asgi
import mcp_serving.testing
from django.urls import NoReverseMatch, reverse
print([name for name in sys.modules if name.startswith("mcp_serving.console") or "jsonform" in name])
try:
    reverse("mcp_console:overview")
except NoReverseMatch:
    print("no route")
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\nno route\n", done.stderr


@pytest.mark.process
def test_the_form_library_whose_import_takes_a_second_is_imported_for_the_first_form() -> None:
    code = """
import sys
import django
django.setup()
from django.urls import reverse
reverse("mcp_console:overview")
print([name for name in sys.modules if "jsonform" in name])
"""
    env = environment(DJANGO_SETTINGS_MODULE="tests.project.settings_with_console", TEST_SQLITE="")
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# Translation


def test_every_word_of_the_pages_can_be_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation._trans, "gettext", lambda text: f"«{text}»", raising=False)
    monkeypatch.setattr(
        translation._trans, "ngettext", lambda one, many, n: f"«{one if n == 1 else many}»", raising=False
    )
    for path in PATHS[:-1]:
        html = get(path, "clerk").content.decode()
        assert "«" in html
        body = re.sub(r"<(script|code|pre|svg|textarea|option)\b.*?</\1>", "", html, flags=re.DOTALL)
        parts = re.findall(r"<(button|h2|h3|th|dt|summary|legend|figcaption)\b[^>]*>(.*?)</\1>", body, re.DOTALL)
        for tag, inner in parts:
            text = " ".join(re.sub(r"<[^>]+>", " ", inner).split())
            untranslated = text and "«" not in text and not _is_data(text)
            assert not untranslated, f"{path}: <{tag}> {text!r}"


def _is_data(text: str) -> bool:
    """Names of programs, and what the server declares."""
    names = ["mcp-serving", "mcp", "Django", "Channels", "Python", "curl", "+", "↑", "↓", "\N{MULTIPLICATION SIGN}"]
    clients = {"Claude Desktop", "Claude Code", "VS Code", "Cursor", "Codex", "Gemini CLI", "Windsurf", "MCP Inspector"}
    return text in names or text in clients
