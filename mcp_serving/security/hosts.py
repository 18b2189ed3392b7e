"""Which Host and Origin a request may carry: what Django's own settings say, by Django's own rules."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.utils.http import is_same_domain

from mcp_serving.web_servers.responses import Refusal

if TYPE_CHECKING:
    from starlette.types import Scope

Header = tuple[bytes, bytes]

_HOST_AND_ORIGIN = frozenset({b"host", b"origin"})
_NAME_LENGTHS = frozenset(map(len, _HOST_AND_ORIGIN))
_TOLD = "The server's settings do not allow this {}."


def read_headers(scope: Scope) -> tuple[int, list[Header]]:
    """The size of all headers in bytes, and the Host and Origin headers.

    It is one pass, because each pass takes as long as a check.
    """
    size, found = 0, []
    for name, value in scope["headers"]:
        length = len(name)
        size += length + len(value)
        if length in _NAME_LENGTHS and name.lower() in _HOST_AND_ORIGIN:
            found.append((name, value))
    return size, found


def refusal(scope: Scope, host_and_origin: list[Header] | None = None, *, any_origin: bool = False) -> Refusal | None:
    """Why this request is refused; None if it may pass.

    Args:
        scope: of the request.
        host_and_origin: its Host and Origin headers, if ``read_headers`` has found them already.
        any_origin: whether Origin is not checked.
    """
    try:
        if (alone := _host_alone(read_headers(scope)[1] if host_and_origin is None else host_and_origin)) is not None:
            allowed = tuple(settings.ALLOWED_HOSTS)
            _must_be_allowed(alone, allowed, not allowed and settings.DEBUG)
            return None
        request = _ScopeRequest(scope)
        host = request.get_host()
    except DisallowedHost as error:
        return Refusal(421, _TOLD.format("Host"), str(error).removesuffix("."))
    origin = request.META.get("HTTP_ORIGIN")
    if any_origin or origin is None or origin == f"{request.scheme}://{host}" or _is_trusted(origin):
        return None
    return Refusal(403, _TOLD.format("Origin"), f"Origin {origin!r} is neither this host nor in CSRF_TRUSTED_ORIGINS")


def origin_of(scope: Scope) -> str:
    """The scheme and host of a request, such as ``https://example.com``, proxy settings of Django included."""
    request = _ScopeRequest(scope)
    try:
        host = request.get_host()
    except DisallowedHost:  # the project checks hosts by other rules: with the SDK's transport_security
        host = f"{request.META['SERVER_NAME']}:{request.META['SERVER_PORT']}"
    return f"{request.scheme}://{host}"


def _host_alone(host_and_origin: list[Header]) -> bytes | None:
    """The Host header if it alone decides, as in most requests; otherwise None."""
    if len(host_and_origin) != 1 or settings.USE_X_FORWARDED_HOST:
        return None
    name, value = host_and_origin[0]
    return value if name.lower() == b"host" else None


@lru_cache(maxsize=64)
def _must_be_allowed(host: bytes, allowed_hosts: tuple[str, ...], debug: bool) -> None:
    """Decide once for each Host: a Django request costs more than the rest of the mount together.

    Django decides by these arguments only: ``DEBUG`` counts only without allowed hosts. An exception is not cached, so
    refused clients cannot fill the cache.

    Raises:
        DisallowedHost: by Django's settings, it is not.
    """
    _ScopeRequest({"headers": [(b"host", host)]}).get_host()


class _ScopeRequest(HttpRequest):
    """As much of a Django request as ``get_host`` and ``scheme`` look at, proxy settings included."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self._scheme: str = scope.get("scheme", "http")
        server_name, server_port = scope.get("server") or ("unknown", "0")
        self.META = {"SERVER_NAME": server_name, "SERVER_PORT": str(server_port)}
        for name, value in scope["headers"]:
            if b"_" in name:  # it could pass for its twin with a hyphen, past a proxy that sets that one
                continue
            key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
            text = value.decode("latin-1")
            # Repeated headers are joined as Django joins them: two hosts are then no host that is allowed.
            self.META[key] = f"{self.META[key]},{text}" if key in self.META else text

    def _get_scheme(self) -> str:
        return self._scheme


def _is_trusted(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    for trusted in settings.CSRF_TRUSTED_ORIGINS:
        if origin == trusted:
            return True
        scheme, _, domain = trusted.partition("://")
        if domain.startswith("*") and parts.scheme == scheme and is_same_domain(parts.netloc, domain.lstrip("*")):
            return True
    return False
