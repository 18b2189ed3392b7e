"""``oauth_settings`` and the system checks: each names a setting that locks clients out or lets attackers in."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from django.urls import include, path

from mcp_serving.oauth import oauth_settings
from mcp_serving.oauth.conf import DEFAULTS
from tests.support import in_django
from tests.support.harness import ROOT, environment

from django.conf import settings  # isort: skip - after Django is set up
from django.contrib.auth.middleware import AuthenticationMiddleware  # isort: skip
from django.test import override_settings  # isort: skip
from oauth2_provider.settings import DEFAULTS as TOOLKITS  # isort: skip
from oauth2_provider.views import AuthorizationView  # isort: skip

from mcp_serving.oauth.checks import check_oauth, check_scopes  # isort: skip


def test_every_key_can_be_read_and_overridden() -> None:
    made = oauth_settings({"notes": "Read your notes"}, ACCESS_TOKEN_EXPIRE_SECONDS=60, OIDC_ENABLED=True)
    assert made["SCOPES"] == {"notes": "Read your notes"}
    assert made["ACCESS_TOKEN_EXPIRE_SECONDS"] == 60
    assert made["OIDC_ENABLED"] is True
    assert made["PKCE_REQUIRED"] is True
    assert oauth_settings()["SCOPES"] == {"mcp": "Use this site in your name"}


def test_every_key_is_one_of_django_oauth_toolkit_but_one() -> None:
    assert set(DEFAULTS) - set(TOOLKITS) == {"DCR_REGISTRATIONS_PER_HOUR"}


@pytest.mark.parametrize("scopes", [{}, ["notes"], "notes"])
def test_scopes_without_words_are_refused(scopes: Any) -> None:
    with pytest.raises(TypeError, match="it has to be a dict such as"):
        oauth_settings(scopes)


@pytest.mark.process
def test_importing_the_function_loads_neither_django_oauth_toolkit_nor_the_sdk() -> None:
    script = """
import sys
from mcp_serving.oauth import oauth_settings
oauth_settings()
print([name for name in ("mcp", "django", "oauth2_provider", "jwt") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def found(**changes: Any) -> dict[str, str]:
    """The ids of the checks, and their texts."""
    with override_settings(**changes):
        return {str(message.id).removeprefix("mcp_oauth."): message.msg for message in check_oauth()}


def with_oauth(**changes: Any) -> dict[str, str]:
    return found(OAUTH2_PROVIDER={**settings.OAUTH2_PROVIDER, **changes})


def test_the_settings_as_they_are_made_are_right() -> None:
    assert found() == {}


WRONG: dict[str, tuple[str, Any]] = {
    "E010": ("PKCE_REQUIRED", False),
    "E011": ("COMPLIANT_BCP_RFC9700_PKCE_METHOD", False),
    "E012": ("COMPLIANT_BCP_RFC9700_IMPLICIT_GRANT", False),
    "E013": ("COMPLIANT_BCP_RFC9700_PASSWORD_GRANT", False),
    "E014": ("COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS", False),
    "E015": ("ALLOW_URI_WILDCARDS", True),
    "E016": ("REFRESH_TOKEN_REUSE_PROTECTION", False),
    "E017": ("ROTATE_REFRESH_TOKEN", False),
    "W010": ("COMPLIANT_BCP_RFC9700_TOKEN_STORAGE", False),
    "W011": ("COMPLIANT_BCP_RFC9700_ACCESS_TOKEN_TRANSPORT", False),
    "W012": ("ALLOW_LOCALHOST_LOOPBACK", False),
    "W013": ("AUTHORIZATION_CODE_EXPIRE_SECONDS", 3600),
    "W014": ("ACCESS_TOKEN_EXPIRE_SECONDS", 7 * 86400),
    "W015": ("REFRESH_TOKEN_EXPIRE_SECONDS", None),
    "W016": ("ALLOWED_REDIRECT_URI_SCHEMES", ["https"]),
    "E003": ("SCOPES", {}),
    "E005": ("OAUTH2_TOKEN_ENDPOINT_AUTH_METHODS_SUPPORTED", ["client_secret_basic"]),
    "E006": ("CIMD_REGISTRATION_PERMISSION_CLASSES", []),
    "E018": ("OAUTH2_VALIDATOR_CLASS", "oauth2_provider.oauth2_validators.OAuth2Validator"),
    "W002": ("DCR_REGISTRATION_PERMISSION_CLASSES", ["oauth2_provider.dcr.IsAuthenticatedDCRPermission"]),
    "W017": ("CIMD_METADATA_FETCHER", "builtins.object"),
}


@pytest.mark.parametrize(("number", "key", "value"), [(number, *wrong) for number, wrong in WRONG.items()])
def test_a_value_that_is_wrong_is_named(number: str, key: str, value: Any) -> None:
    checks = with_oauth(**{key: value})
    assert list(checks) == [number]
    assert f"OAUTH2_PROVIDER[{key!r}]" in checks[number]


def test_the_defaults_of_django_oauth_toolkit_are_refused() -> None:
    checks = found(OAUTH2_PROVIDER={})
    assert {"E005", "E011", "E012", "E013", "E014", "E016", "E018", "W001", "W012"} <= set(checks)
    with override_settings():
        del settings.OAUTH2_PROVIDER
        assert [message.id for message in check_oauth()] == ["mcp_oauth.E002"]


def test_what_the_site_lacks_is_named() -> None:
    without = [each for each in settings.INSTALLED_APPS if each != "oauth2_provider"]
    assert list(found(INSTALLED_APPS=without)) == ["E001"]
    assert list(found(MIDDLEWARE=[])) == ["E009"]
    assert list(with_oauth(DCR_ENABLED=False, CIMD_ENABLED=False)) == ["W001"]
    assert list(with_oauth(OIDC_ISS_ENDPOINT="http://site.example")) == ["E004"] if not settings.DEBUG else True
    assert list(found(ALLOWED_HOSTS=["*"], DEBUG=False)) == ["W018"]
    assert list(found(SECURE_CSP={"form-action": ["'self'"]})) == ["W005"]


def test_a_subclass_of_djangos_middleware_counts() -> None:
    middleware = [
        each.replace("django.contrib.auth.middleware.Auth", f"{__name__}.OurAuth") for each in settings.MIDDLEWARE
    ]
    assert found(MIDDLEWARE=middleware) == {}


class OurAuthenticationMiddleware(AuthenticationMiddleware):
    pass


def test_urls_that_are_missing_below_a_prefix_or_of_somebody_else_are_named() -> None:
    assert list(found(ROOT_URLCONF="tests.project.urls_with_admin", LOGIN_URL="/admin/login/")) == ["E007"]
    below = [path("api/", include("mcp_serving.oauth.urls")), path("login/", AuthorizationView.as_view())]
    assert list(found(ROOT_URLCONF=Urls(below))) == ["W003"]
    theirs = [path("", include("oauth2_provider.urls")), path("login/", AuthorizationView.as_view())]
    checks = found(ROOT_URLCONF=Urls(theirs))
    assert list(checks) == ["E019"]
    assert checks["E019"].startswith("/authorize/ is served by another view")


class Urls:
    """A URLconf that is an object."""

    def __init__(self, urlpatterns: list[Any]) -> None:
        self.urlpatterns = urlpatterns

    def __hash__(self) -> int:
        return id(self)


def test_a_login_page_that_is_not_there_is_named() -> None:
    assert list(found(LOGIN_URL="/nowhere/")) == ["W004"]
    alone = Urls([path("", include("mcp_serving.oauth.urls"))])
    assert list(found(LOGIN_URL="/nowhere/", ROOT_URLCONF=alone)) == ["E008"]
    assert list(found(LOGIN_URL="no-such-name", ROOT_URLCONF=alone)) == ["E008"]


def undeclared(scopes: dict[str, str]) -> dict[str, str | None]:
    """The messages and hints of the check of scopes, where only these scopes are declared."""
    import_module("tests.project.oauth_asgi")  # its handlers and tools need scopes
    with override_settings(OAUTH2_PROVIDER={**settings.OAUTH2_PROVIDER, "SCOPES": scopes}):
        messages = check_scopes()
    assert {message.id for message in messages} <= {"mcp_oauth.E020"}
    return {message.msg: message.hint for message in messages}


def test_a_scope_that_a_tool_needs_and_nobody_has_declared_is_named() -> None:
    assert undeclared(settings.OAUTH2_PROVIDER["SCOPES"]) == {}
    found = undeclared({"notes:read": "Read your notes"})
    told = "needs the scope 'notes:write', which OAUTH2_PROVIDER['SCOPES'] does not declare: no client can get it."
    assert [message for message in found if message.startswith("The tool 'delete_note'")] == [
        f"The tool 'delete_note' {told}"
    ]
    assert f"The prompt 'tidy' {told}" in found
    assert f"The resource 'notes://{{note}}/text' {told}" in found
    assert set(found.values()) == {
        "Declare it with its words for the consent page: oauth_settings({'notes:write': \"...\"})."
    }
    found = undeclared({"notes.read": "Read", "notes:write": "Write"})
    hint = found[f"The handler at /reading {told}".replace("write", "read")]
    assert hint is not None
    assert hint.startswith("Did you mean 'notes.read'? Otherwise declare it")


@pytest.mark.process
def test_a_project_without_the_app_has_no_table_no_route_and_no_import_of_it() -> None:
    script = """
import sys, django
django.setup()
import mcp_serving.server, mcp_serving.asgi.handler
from django.apps import apps
from tests.project.access_asgi import application
loaded = [name for name in sys.modules if name.startswith(("mcp_serving.oauth", "oauth2_provider", "oauthlib"))]
print(loaded, [model.__name__ for model in apps.get_models() if "oauth" in model._meta.label_lower])
"""
    env = environment(**in_django.ENVIRONMENT, TEST_EVENTS="/nowhere")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stderr
