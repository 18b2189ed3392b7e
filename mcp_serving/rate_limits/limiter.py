"""Counts the calls of each caller, and refuses those above a rate."""

from __future__ import annotations

import ipaddress
import math
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.crypto import salted_hmac
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components

from mcp_serving import conf, current_request
from mcp_serving.rate_limits import storage
from mcp_serving.rate_limits.rate import Rate
from mcp_serving.security.principal import user_identity

if TYPE_CHECKING:
    from starlette.types import Scope

_ROUNDS = Rate(20, 600, "20 per 10 minutes")
"""How many requests that continue a call are not counted. Each brings the answer to a question."""

_PROCESS = secrets.token_hex(8)
"""The caller of a process that serves over stdio without ``runmcp --user``."""


class RateRefusal(NamedTuple):
    """Why a call is refused."""

    text: str
    status: int
    """The HTTP status."""
    seconds: int
    """Seconds after which the call may be repeated."""


async def refusal(rate: Rate, name: str, caller: Any, call: str | None = None) -> RateRefusal | None:
    """Count a call, and return why it is refused; None if it is within the rate.

    Args:
        rate: the rate of the handler or tool.
        name: the name of the handler or tool. Each name has counts of its own.
        caller: see ``caller_of``.
        call: the id of the call that this request continues with an answer. This call was counted already.
    """
    try:
        if call is not None and await storage.hit(_key("call", name, call), _ROUNDS) is None:
            return None
        seconds = await storage.hit(_key(name, caller), rate)
    except ConnectionError:
        if conf.configuration().rate_limit_on_outage == "allow":
            return None
        return RateRefusal("Calls cannot be counted now. Try again in 1 second.", 503, 1)
    if seconds is None:
        return None
    wait = max(1, math.ceil(seconds))
    unit = "second" if wait == 1 else "seconds"
    return RateRefusal(f"Too many calls: {rate.words} are allowed. Try again in {wait} {unit}.", 429, wait)


def caller_of(scope: Scope) -> Any:
    """The Django user of an HTTP request. Without a user, its token. Without both, its address.

    The address is ``scope["client"]``. The web server sets it, by its own settings for proxies.
    """
    user = scope.get("user")
    if isinstance(user, AuthenticatedUser):
        return "token", principal_components(user.access_token)
    if user is not None and user.is_authenticated:
        return "user", user_identity(user)
    return "address", _network((scope.get("client") or ("",))[0])


def current_caller() -> Any | None:
    """The caller of the MCP request that is being handled; None outside of a request."""
    current = current_request.get()
    if current.mcp_context is None:
        return None
    if current.mcp_context.request is not None:
        return caller_of(current.mcp_context.request.scope)
    user = current.local_user
    return ("process", _PROCESS) if user is None or not user.is_authenticated else ("user", user_identity(user))


def _network(address: str) -> str:
    """The /64 network of an IPv6 address, because one client may use the whole network; other addresses unchanged."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _key(*parts: Any) -> str:
    """A key of fixed length. It does not reveal an address or a user, and other projects have other keys."""
    return salted_hmac("mcp_serving.rate_limits", repr(parts), algorithm="sha256").hexdigest()[:32]
