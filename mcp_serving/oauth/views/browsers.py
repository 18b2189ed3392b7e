"""What the views have in common: for clients that run in a browser, and for pages that attackers like to frame."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import add_never_cache_headers

View = Callable[..., HttpResponseBase]

_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, MCP-Protocol-Version",
    "Access-Control-Max-Age": "600",
}


def open_to_scripts(view: View) -> View:
    """Let a client that is a page of another origin read the response: these views use no cookies."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = HttpResponse(status=204) if request.method == "OPTIONS" else view(request, *args, **kwargs)
        for name, value in _CORS.items():
            response[name] = value
        return response

    return answer


def only_as_a_page(view: View) -> View:
    """For pages on which a user decides: never in a frame, never from a cache, and the address stays here."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response["X-Frame-Options"] = "DENY"
        policy = response.get("Content-Security-Policy", "")
        if "frame-ancestors" not in policy:
            response["Content-Security-Policy"] = "; ".join(filter(None, [policy, "frame-ancestors 'none'"]))
        response["Referrer-Policy"] = "same-origin"  # the query has the client's state
        add_never_cache_headers(response)
        return response

    return answer
