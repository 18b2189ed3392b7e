"""System checks: each names a setting that locks MCP clients out or lets attackers in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, get_script_prefix, resolve, reverse
from django.utils.module_loading import import_string

from mcp_serving.oauth.conf import DAY, DEFAULTS, MINUTE

INCLUDE = 'path("", include("mcp_serving.oauth.urls"))'


@dataclass(frozen=True)
class Rule:
    """What a key of ``OAUTH2_PROVIDER`` has to be."""

    key: str
    number: str
    """The id of the check; E for a hole or a lockout, W for a risk."""
    consequence: str
    """What happens otherwise."""

    def message(self, value: Any) -> CheckMessage:
        kind = Error if self.number.startswith("E") else CheckWarning
        hint = f"Leave the key out of oauth_settings(...), which sets it to {DEFAULTS[self.key]!r}."
        text = f"OAUTH2_PROVIDER[{self.key!r}] is {value!r}: {self.consequence}."
        return kind(text, hint=hint, id=f"mcp_oauth.{self.number}")


EXACTLY = (
    # What would let attackers in
    Rule("PKCE_REQUIRED", "E010", "a stolen authorization code can be exchanged by anybody"),
    Rule("COMPLIANT_BCP_RFC9700_PKCE_METHOD", "E011", "clients may send the PKCE verifier itself as the challenge"),
    Rule("COMPLIANT_BCP_RFC9700_IMPLICIT_GRANT", "E012", "tokens can be issued into the address of a page"),
    Rule("COMPLIANT_BCP_RFC9700_PASSWORD_GRANT", "E013", "clients may collect the passwords of users"),
    Rule("COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS", "E014", "clients cannot notice a mixed-up issuer"),
    Rule("ALLOW_URI_WILDCARDS", "E015", "a code can be sent to any host that matches a pattern"),
    Rule("REFRESH_TOKEN_REUSE_PROTECTION", "E016", "a stolen refresh token works beside the client's own"),
    Rule("ROTATE_REFRESH_TOKEN", "E017", "a stolen refresh token works as long as the client's own"),
    Rule("COMPLIANT_BCP_RFC9700_TOKEN_STORAGE", "W010", "the database holds tokens that can be used"),
    Rule("COMPLIANT_BCP_RFC9700_ACCESS_TOKEN_TRANSPORT", "W011", "other views accept tokens in URLs, which are logged"),
    # What would lock clients out
    Rule("ALLOW_LOCALHOST_LOOPBACK", "W012", "desktop clients that listen on a port of localhost cannot connect"),
)

AT_MOST = (
    (Rule("AUTHORIZATION_CODE_EXPIRE_SECONDS", "W013", "a stolen code stays valid for long"), 10 * MINUTE),
    (Rule("ACCESS_TOKEN_EXPIRE_SECONDS", "W014", "a stolen token stays valid for long"), DAY),
    (Rule("REFRESH_TOKEN_EXPIRE_SECONDS", "W015", "an app that nobody uses stays connected"), 366 * DAY),
)


def check_oauth(**_: Any) -> list[CheckMessage]:
    """``OAUTH2_PROVIDER``, the URLs, the login page, and the settings of Django that concern signing in."""
    if not apps.is_installed("oauth2_provider"):
        return [Error("mcp_serving.oauth needs 'oauth2_provider' in INSTALLED_APPS.", id="mcp_oauth.E001")]
    if not isinstance(getattr(settings, "OAUTH2_PROVIDER", None), dict):
        return [
            Error(
                "OAUTH2_PROVIDER is not set: django-oauth-toolkit's own defaults lock MCP clients out.",
                hint="OAUTH2_PROVIDER = oauth_settings({...}), imported from mcp_serving.oauth.",
                id="mcp_oauth.E002",
            )
        ]
    return [*_check_values(), *_check_registration(), *_check_classes(), *_check_urls(), *_check_django()]


def _check_values() -> Iterator[CheckMessage]:
    from oauth2_provider.settings import oauth2_settings

    for rule in EXACTLY:
        value = getattr(oauth2_settings, rule.key)
        if value != DEFAULTS[rule.key]:
            yield rule.message(value)
    for rule, seconds in AT_MOST:
        value = getattr(oauth2_settings, rule.key)
        if value is None or (isinstance(value, int) and value > seconds):
            yield rule.message(value)
    if not oauth2_settings.user_settings.get("SCOPES", True):  # to read it as an attribute would raise
        yield Error(
            "OAUTH2_PROVIDER['SCOPES'] is empty: a client has nothing to ask for, and no user can agree.",
            hint='Declare one: oauth_settings({"orders:read": "See your orders"}).',
            id="mcp_oauth.E003",
        )
    if "http" not in oauth2_settings.ALLOWED_REDIRECT_URI_SCHEMES:
        yield CheckWarning(
            "OAUTH2_PROVIDER['ALLOWED_REDIRECT_URI_SCHEMES'] lacks 'http': desktop clients, which listen on a port of "
            "the user's machine, cannot connect.",
            hint="Add it: mcp_serving.oauth accepts http for loopback addresses alone.",
            id="mcp_oauth.W016",
        )
    issuer = oauth2_settings.OIDC_ISS_ENDPOINT
    if issuer and not issuer.startswith("https://") and not settings.DEBUG:
        yield Error(
            f"OAUTH2_PROVIDER['OIDC_ISS_ENDPOINT'] is {issuer!r}: clients refuse an issuer without https.",
            hint="Leave it out, or give the https URL of this site.",
            id="mcp_oauth.E004",
        )


def _check_registration() -> Iterator[CheckMessage]:
    from oauth2_provider.settings import oauth2_settings

    if not (oauth2_settings.DCR_ENABLED or oauth2_settings.CIMD_ENABLED):
        yield CheckWarning(
            "OAUTH2_PROVIDER['DCR_ENABLED'] and ['CIMD_ENABLED'] are off: staff have to add each client in the admin, "
            "and its users have to type its client id.",
            hint="Turn one of them on.",
            id="mcp_oauth.W001",
        )
    for key in ("OAUTH2_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED", "OIDC_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED"):
        if "none" not in getattr(oauth2_settings, key):
            yield Error(
                f"OAUTH2_PROVIDER[{key!r}] lacks 'none': clients without a secret, such as Claude, do not use their "
                "metadata document.",
                hint="Add 'none'.",
                id="mcp_oauth.E005",
            )
    if oauth2_settings.DCR_ENABLED and "AllowAllDCRPermission" not in str(
        oauth2_settings.DCR_REGISTRATION_PERMISSION_CLASSES
    ):
        yield CheckWarning(
            "OAUTH2_PROVIDER['DCR_REGISTRATION_PERMISSION_CLASSES'] has a permission of its own: MCP clients register "
            "without being logged in, and get 401 if it refuses that.",
            hint="Use oauth2_provider.dcr.AllowAllDCRPermission, or DCR_ENABLED=False. If your class lets them in, "
            "silence this check.",
            id="mcp_oauth.W002",
        )
    if oauth2_settings.CIMD_ENABLED and not oauth2_settings.CIMD_REGISTRATION_PERMISSION_CLASSES:
        yield Error(
            "OAUTH2_PROVIDER['CIMD_REGISTRATION_PERMISSION_CLASSES'] is empty: every metadata document is refused.",
            hint="Leave the key out of oauth_settings(...), or set CIMD_ENABLED=False.",
            id="mcp_oauth.E006",
        )


def _check_classes() -> Iterator[CheckMessage]:
    from oauth2_provider.cimd import SafeMetadataFetcher
    from oauth2_provider.settings import oauth2_settings

    from mcp_serving.oauth.provider.validator import Validator

    if not issubclass(oauth2_settings.OAUTH2_VALIDATOR_CLASS, Validator):
        yield Error(
            "OAUTH2_PROVIDER['OAUTH2_VALIDATOR_CLASS'] is not a subclass of mcp_serving.oauth.provider.validator."
            "Validator: codes may go to any host without TLS, and registered clients may get tokens without a user.",
            hint="Derive your class from it.",
            id="mcp_oauth.E018",
        )
    if oauth2_settings.CIMD_ENABLED and not issubclass(oauth2_settings.CIMD_METADATA_FETCHER, SafeMetadataFetcher):
        yield CheckWarning(
            "OAUTH2_PROVIDER['CIMD_METADATA_FETCHER'] is not a subclass of django-oauth-toolkit's SafeMetadataFetcher: "
            "anybody can have it request an address of your network.",
            hint="Derive your class from mcp_serving.oauth.provider.client_metadata.ClientMetadataFetcher. If your "
            "class checks addresses itself, silence this check.",
            id="mcp_oauth.W017",
        )


def _check_urls() -> Iterator[CheckMessage]:
    from mcp_serving.oauth.views.authorization import AuthorizationView

    try:
        path = reverse("oauth2_provider:authorize")
        metadata = reverse("oauth2_provider:oauth-server-metadata")
    except NoReverseMatch:
        yield Error("The URLs of mcp_serving.oauth are missing.", hint=f"Add {INCLUDE}.", id="mcp_oauth.E007")
        return
    view = getattr(resolve("/" + path.removeprefix(get_script_prefix())).func, "view_class", None)
    if view is None or not issubclass(view, AuthorizationView):
        yield Error(
            f"{path} is served by another view than the one of mcp_serving.oauth: users do not read the host of the "
            "client, and a client may skip the page.",
            hint=f"Replace include('oauth2_provider.urls') by {INCLUDE}.",
            id="mcp_oauth.E019",
        )
    if metadata.removeprefix(get_script_prefix()) != ".well-known/oauth-authorization-server":
        yield CheckWarning(
            f"The URLs of mcp_serving.oauth are below a prefix: clients look for {metadata} at the root of the host, "
            "and find it only if they try OpenID discovery.",
            hint=f"Include them at the root: {INCLUDE}.",
            id="mcp_oauth.W003",
        )
    yield from _check_login()


def _check_login() -> Iterator[CheckMessage]:
    from mcp_serving.security.login import has_view, login_url

    hint = "Set LOGIN_URL to your login page, or add django.contrib.auth.urls."
    try:
        url = login_url()
    except NoReverseMatch:
        url = ""
    if not has_view(url):
        yield Error(
            f"LOGIN_URL is {settings.LOGIN_URL!r}, where there is no page, and there is no admin: nobody can log in.",
            hint=hint,
            id="mcp_oauth.E008",
        )
    elif url != resolve_url(settings.LOGIN_URL):
        yield CheckWarning(
            f"LOGIN_URL is {settings.LOGIN_URL!r}, where there is no page: users log in at the admin, which lets in "
            "staff alone.",
            hint=hint,
            id="mcp_oauth.W004",
        )


def _check_django() -> Iterator[CheckMessage]:
    installed = tuple(each for each in map(import_string, settings.MIDDLEWARE) if isinstance(each, type))
    for middleware in (SessionMiddleware, AuthenticationMiddleware):
        if not any(issubclass(each, middleware) for each in installed):
            name = f"{middleware.__module__}.{middleware.__qualname__}"
            yield Error(
                f"MIDDLEWARE lacks {name!r}: nobody is logged in on the consent page.",
                hint="Add it.",
                id="mcp_oauth.E009",
            )
    if "*" in settings.ALLOWED_HOSTS and not settings.DEBUG:
        yield CheckWarning(
            "ALLOWED_HOSTS has '*': the issuer and the resource are whatever host a request names, and a proxy that "
            "caches the documents below /.well-known/ can be led to serve an attacker's.",
            hint="Name the hosts of this site.",
            id="mcp_oauth.W018",
        )
    policy = getattr(settings, "SECURE_CSP", None) or {}
    if isinstance(policy, dict) and "form-action" in policy:
        yield CheckWarning(
            "SECURE_CSP has 'form-action': browsers then stop the redirect from the consent page to the client.",
            hint="Leave out form-action, or add the hosts of your clients.",
            id="mcp_oauth.W005",
        )


def check_scopes(**_: Any) -> list[CheckMessage]:
    """With ``check --deploy``: each scope that a mount with ``OAuth`` needs is declared."""
    from mcp_serving import conf, loading
    from mcp_serving.sdk_installation import sdk_problem

    if not apps.is_installed("oauth2_provider") or loading.settings_problems() or sdk_problem():
        return []
    configuration = conf.configuration()
    paths = (configuration.server, configuration.http_server, getattr(settings, "ASGI_APPLICATION", None))
    try:
        for path in filter(None, paths):
            loading.load(path)  # which creates the handlers
    except Exception:  # the checks of mcp_serving report it
        return []
    return list(_undeclared_scopes())


def _undeclared_scopes() -> Iterator[CheckMessage]:
    from oauth2_provider.scopes import get_scopes_backend

    from mcp_serving.asgi import lifecycle
    from mcp_serving.asgi.handler import StreamableHTTPHandler
    from mcp_serving.oauth.verifier import OAuth

    declared = list(get_scopes_backend().get_all_scopes())
    needed: dict[tuple[str, str], None] = {}
    for handler in lifecycle.handlers():
        if not isinstance(handler, StreamableHTTPHandler) or handler.access.metadata is None:
            continue
        if any(isinstance(each, OAuth) for each in handler.access.metadata.verifiers):
            needed |= {(f"The handler at {handler.place}", scope): None for scope in handler.access.callers.scopes}
            needed |= {
                (f"The {kind} {name!r}", scope): None for kind, name, scope in getattr(handler.mcp, "scopes", ())
            }
    for what, scope in needed:
        if scope not in declared:
            close = get_close_matches(scope, declared, n=1, cutoff=0.8)
            yield Error(
                f"{what} needs the scope {scope!r}, which OAUTH2_PROVIDER['SCOPES'] does not declare: no client can "
                "get it.",
                hint=(f"Did you mean {close[0]!r}? Otherwise declare it" if close else "Declare it")
                + f' with its words for the consent page: oauth_settings({{{scope!r}: "..."}}).',
                id="mcp_oauth.E020",
            )
