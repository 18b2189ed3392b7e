"""The authorization endpoint: who is logged in reads which client asks for what, and agrees or not."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponseRedirect
from django.http.request import validate_host
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST
from oauth2_provider.exceptions import FatalClientError, OAuthToolkitError
from oauth2_provider.models import get_application_model
from oauth2_provider.settings import oauth2_settings
from oauth2_provider.views import AuthorizationView as BaseAuthorizationView
from oauthlib.oauth2.rfc6749.errors import CustomOAuth2Error, InvalidClientIdError, InvalidRequestError
from pydantic import AnyHttpUrl

from mcp_serving.oauth.provider.validator import LOOPBACK, NULL
from mcp_serving.oauth.views.browsers import only_as_a_page
from mcp_serving.security.login import login_url

LONGEST_NAME = 80
LONGEST = {"code_challenge": 128, "code_challenge_method": 10, "nonce": 255}
"""The most characters of each value: the lengths of django-oauth-toolkit's columns."""


@method_decorator([only_as_a_page, csrf_protect], name="dispatch")
class AuthorizationView(BaseAuthorizationView):  # type: ignore[misc] # django-oauth-toolkit has no types
    """django-oauth-toolkit's view, for clients that nobody at the site knows.

    It asks each time, also where the user has agreed before: another program on the same machine may pose as the
    client. It demands the resource that the token is for, and names the issuer in each response.
    """

    template_name = "mcp_serving/oauth/authorize.html"

    def get_login_url(self) -> str:
        return login_url()

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        query: Any = request.GET.copy()
        query.pop("approval_prompt", None)  # with which a client could ask to skip the page
        request.GET = query
        response: HttpResponseBase = super().get(request, *args, **kwargs)
        return response

    def validate_authorization_request(self, request: HttpRequest) -> tuple[Any, Any]:
        scopes, credentials = super().validate_authorization_request(request)
        self._must_be_storable(credentials)
        self._must_name_one_resource(request.GET.getlist("resource"), credentials)
        return scopes, credentials

    def form_valid(self, form: Any) -> HttpResponseBase:
        given = form.cleaned_data
        if not get_application_model().objects.filter(client_id=given["client_id"]).exists():
            error = InvalidClientIdError()
            return self._error(FatalClientError(error=error))
        try:
            self._must_be_storable(given)
            self._must_name_one_resource(given["resource"].split(), given)
        except OAuthToolkitError as error:
            return self._error(error)
        response: HttpResponseBase = super().form_valid(form)
        return response

    def _error(self, error: OAuthToolkitError) -> HttpResponseBase:
        response: HttpResponseBase = self.error_response(error, None)
        return response

    def _must_be_storable(self, credentials: dict[str, Any]) -> None:
        """Refuse values that are longer than their columns. With PostgreSQL, the client would otherwise get 500."""
        for name, length in LONGEST.items():
            value = max(credentials.get(name) or "", self.request.GET.get(name, ""), key=len)
            if len(value) > length or NULL in value:
                problem = f"{name} has {len(value)} characters; {length} are allowed, and no null character."
                error = InvalidRequestError(description=problem, state=credentials.get("state"))
                raise OAuthToolkitError(error=error, redirect_uri=credentials["redirect_uri"])

    def _must_name_one_resource(self, resources: list[str], credentials: dict[str, Any]) -> None:
        """Refuse a request whose token would be good for nothing, or for more than one server (RFC 8707)."""
        problem = resource_problem(resources)
        if problem is not None:
            error = CustomOAuth2Error(error="invalid_target", description=problem, state=credentials.get("state"))
            raise OAuthToolkitError(error=error, redirect_uri=credentials["redirect_uri"])

    def redirect(self, redirect_to: str, application: Any) -> HttpResponseBase:
        """Send the user back to the client, also after an error, with the issuer (RFC 9207)."""
        if oauth2_settings.COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS:
            separator = "#" if "#" in redirect_to else "?"  # for response_mode=fragment
            address, _, query = redirect_to.partition(separator)
            pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "iss"]
            issuer = oauth2_settings.oauth2_authorization_server_issuer(self.request)
            redirect_to = f"{address}{separator}{urlencode([*pairs, ('iss', issuer)])}"
        response: HttpResponseBase = super().redirect(redirect_to, application)
        return response

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        application = context.get("application")
        if application is not None:
            context["client"] = Client(application, context["redirect_uri"])
            context["resource_host"] = urlsplit(context["resource"]).netloc
            context["scope_words"] = dict(zip(context["scopes"], context["scopes_descriptions"], strict=True))
        return context


class Client:
    """What a user can know of a client: its name is the client's own claim, its host is not."""

    def __init__(self, application: Any, redirect_uri: str) -> None:
        self.application = application
        target = urlsplit(redirect_uri)
        has_document = application.registration_source == application.RegistrationSource.CIMD
        self.is_verified = has_document
        """Whether the name comes from a document of the client's own host."""
        self.host = readable_host(application.client_id if has_document else redirect_uri)
        self.is_on_this_device = target.hostname in LOOPBACK or target.scheme not in ("http", "https")
        """Whether the answer goes to a program on the user's machine."""
        self.name = readable_name(application)


def readable_name(application: Any) -> str:
    """The client's name in one line, without characters that change how the text around it reads."""
    name = "".join(each for each in application.name if each.isprintable()).strip()
    return name[:LONGEST_NAME] or str(_("A client without a name"))


def readable_host(url: str) -> str:
    """The host of a URL with its port, in ASCII: other letters may look like the letters of another host."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return ascii(host)


def resource_problem(resources: list[str]) -> str | None:
    """Why these are not the one resource of this site that a token may be for; None if they are."""
    if len(resources) != 1:
        return f"The request names {len(resources)} resources; it has to name one, the URL of the MCP server."
    try:
        parts = urlsplit(resources[0])
        host, scheme = parts.hostname or "", parts.scheme
        is_plain = AnyHttpUrl(resources[0]).path in (parts.path, "/")
    except ValueError:
        host, scheme, is_plain = "", "", True
    allowed = settings.ALLOWED_HOSTS or ([".localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    if scheme not in ("http", "https") or not validate_host(_bracketed(host), allowed):
        return f"The resource {resources[0]!r} is not a URL of this site."
    if not is_plain:
        return f"The resource {resources[0]!r} has a path that leads elsewhere, such as one with dots or spaces."
    return None


def _bracketed(host: str) -> str:
    """The host as ``ALLOWED_HOSTS`` has it: an IPv6 address in brackets."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


@require_POST
@csrf_protect
def switch_account(request: HttpRequest) -> HttpResponseBase:
    """Log out, and come back to the consent page as another user."""
    back = request.POST.get("next", "")
    logout(request)
    if not url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure()):
        back = reverse("mcp_oauth:connected-apps")
    address = login_url()
    separator = "&" if "?" in address else "?"
    return HttpResponseRedirect(f"{address}{separator}{urlencode({'next': back})}")
