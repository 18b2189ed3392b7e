"""Who may enter the console, and what a browser may do with its pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth import get_permission_codename, get_user_model
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.templatetags.static import static
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from mcp_serving import conf, loading
from mcp_serving.security.login import login_url
from mcp_serving.threads import without_atomic_requests

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def console_view(view: View) -> View:
    """For each view of the console: only those who may enter, no cache, CSRF protection, and a strict CSP."""

    @wraps(view)
    async def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = await request.auser()
        if not await may_enter(user):
            if user.is_authenticated:
                raise PermissionDenied(_("The MCP console is for staff."))
            return redirect_to_login(request.get_full_path(), login_url())
        request.user = user  # the user itself: what looks at it later needs no thread
        response = await view(request, *args, **kwargs)
        response.headers.setdefault("Content-Security-Policy", content_security_policy())
        response.headers.setdefault("Referrer-Policy", "same-origin")
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    protected: View = never_cache(csrf_protect(guarded))
    return without_atomic_requests(protected)  # with ATOMIC_REQUESTS, Django refuses other async views


async def may_enter(user: Any) -> bool:
    """Whether a user may use the console: staff, or whom ``MCP_SERVING["CONSOLE_ACCESS"]`` accepts."""
    path = conf.configuration().console_access
    if path is None:
        return bool(user.is_active and getattr(user, "is_staff", False))
    accepts = loading.load(path)
    verdict = accepts(user) if iscoroutinefunction(accepts) else sync_to_async(accepts)(user)
    return bool(await verdict)


def may_change_users(user: Any) -> bool:
    """Whether a user may see what others see: whoever may change users could log in as each of them."""
    options = get_user_model()._meta
    return bool(user.has_perm(f"{options.app_label}.{get_permission_codename('change', options)}"))


def content_security_policy() -> str:
    """No script, style or frame but those of the site itself. Results of tools are shown from ``data:`` URLs."""
    origin = urlsplit(static("mcp_console/console.js"))
    files = f"'self' {origin.scheme or 'https'}://{origin.netloc}" if origin.netloc else "'self'"
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; img-src {files} data:; media-src data:; "
        "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )
