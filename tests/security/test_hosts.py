"""Which Host and Origin may reach MCP: what Django's settings say, by Django's rules."""

from __future__ import annotations

from typing import Any

import anyio
import django
import httpx2
import pytest
from django.test import override_settings
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from mcp_serving import StreamableHTTPHandler
from mcp_serving.asgi import lifecycle
from mcp_serving.security import hosts
from mcp_serving.web_servers.responses import Refusal
from tests.support.harness import serving_http
from tests.support.raw_http import Request

django.setup()  # override_settings needs settings that are loaded


def refusal(
    host: str | None = None, origin: str | None = None, *, scheme: str = "http", **headers: str
) -> Refusal | None:
    given = {"host": host, "origin": origin, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "scheme": scheme,
        "server": ("127.0.0.1", 8000),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None],
    }
    return hosts.refusal(scope)


@override_settings(DEBUG=True, ALLOWED_HOSTS=[])
@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "app.localhost:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000"]
)
def test_with_debug_and_no_allowed_hosts_this_machine_is_allowed(host: str) -> None:
    assert refusal(host) is None


@override_settings(DEBUG=True, ALLOWED_HOSTS=[])
@pytest.mark.parametrize("host", ["example.com", "localhost.example.com", "127.0.0.1.example.com", "[::2]", "0.0.0.0"])
def test_with_debug_and_no_allowed_hosts_no_other_name_is_allowed(host: str) -> None:
    found = refusal(host)
    assert found is not None
    assert found.status == 421


def test_what_was_decided_about_a_host_lasts_no_longer_than_the_settings() -> None:
    with override_settings(DEBUG=False, ALLOWED_HOSTS=["example.com"]):
        assert refusal("example.com") is None
    with override_settings(DEBUG=False, ALLOWED_HOSTS=["example.org"]):
        assert refusal("example.com") is not None
    with override_settings(DEBUG=True, ALLOWED_HOSTS=[]):
        assert refusal("localhost") is None
    with override_settings(DEBUG=False, ALLOWED_HOSTS=[]):
        assert refusal("localhost") is not None


@override_settings(DEBUG=False, ALLOWED_HOSTS=["example.com"])
def test_nothing_is_kept_of_hosts_that_are_refused() -> None:
    kept = hosts._must_be_allowed.cache_info().currsize
    assert all(refusal(f"{number}.example.com") is not None for number in range(10))
    assert hosts._must_be_allowed.cache_info().currsize == kept


@override_settings(DEBUG=False, ALLOWED_HOSTS=[])
def test_without_debug_and_allowed_hosts_nobody_gets_in() -> None:
    assert refusal("localhost") is not None


@override_settings(DEBUG=False, ALLOWED_HOSTS=["example.com", ".example.org", "[2001:db8::1]"])
@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.com", True),
        ("EXAMPLE.com:8443", True),
        ("example.com.", True),
        ("www.example.com", False),
        ("example.org", True),
        ("www.example.org", True),
        ("badexample.org", False),
        ("[2001:db8::1]:443", True),
        ("[2001:db8::2]", False),
        ("example.com/path", False),
        ("example.com,example.org", False),
        ("", False),
    ],
)
def test_allowed_hosts_has_djangos_wildcards_and_leaves_ports_aside(host: str, allowed: bool) -> None:
    assert (refusal(host) is None) is allowed


@override_settings(DEBUG=False, ALLOWED_HOSTS=["*"])
def test_a_star_allows_every_host() -> None:
    assert refusal("anything.example") is None


@override_settings(DEBUG=False, ALLOWED_HOSTS=["127.0.0.1"])
def test_without_a_host_header_the_servers_own_address_counts() -> None:
    assert refusal(None) is None


@override_settings(DEBUG=False, ALLOWED_HOSTS=["example.com"])
def test_a_second_host_header_cannot_be_smuggled_in() -> None:
    scope = {"scheme": "http", "headers": [(b"host", b"example.com"), (b"host", b"evil.example")]}
    assert hosts.refusal(scope) is not None


@override_settings(ALLOWED_HOSTS=["example.com"], USE_X_FORWARDED_HOST=True)
def test_the_forwarded_host_counts_where_the_settings_say_so() -> None:
    assert refusal("internal", x_forwarded_host="example.com") is None
    assert refusal("example.com", x_forwarded_host="evil.example") is not None


@override_settings(ALLOWED_HOSTS=["example.com"], USE_X_FORWARDED_HOST=False)
def test_the_forwarded_host_counts_for_nothing_otherwise() -> None:
    assert refusal("example.com", x_forwarded_host="evil.example") is None
    assert refusal("evil.example", x_forwarded_host="example.com") is not None


TRUSTED = ["https://trusted.example", "https://*.wild.example", "https://*.ported.example:8443"]


@override_settings(ALLOWED_HOSTS=["example.com"], CSRF_TRUSTED_ORIGINS=TRUSTED)
@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://example.com", True),
        ("https://example.com", False),
        ("http://example.com:8000", False),
        ("https://trusted.example", True),
        ("http://trusted.example", False),
        ("https://trusted.example.evil", False),
        ("https://a.wild.example", True),
        ("https://wild.example", True),
        ("https://badwild.example", False),
        ("http://a.wild.example", False),
        ("https://a.wild.example:8443", False),
        ("https://a.ported.example:8443", True),
        ("null", False),
        ("", False),
        ("http://[", False),
        ("example.com", False),
        ("http://example.com, http://example.com", False),
    ],
)
def test_an_origin_is_this_host_or_a_trusted_one(origin: str, allowed: bool) -> None:
    found = refusal("example.com", origin)
    assert (found is None) is allowed
    assert found is None or found.status == 403


@override_settings(ALLOWED_HOSTS=["example.com"], SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"))
def test_behind_a_tls_proxy_the_origin_is_compared_with_the_scheme_of_the_client() -> None:
    assert refusal("example.com", "https://example.com", x_forwarded_proto="https") is None
    assert refusal("example.com", "https://example.com", x_forwarded_proto="http") is not None


@override_settings(ALLOWED_HOSTS=["example.com"])
def test_the_reason_names_the_setting_and_holds_nothing_that_could_forge_a_log_line() -> None:
    for found, setting in (
        (refusal("evil.example"), "ALLOWED_HOSTS"),
        (refusal("evil\r\nERROR \x1b[31m"), "evil"),  # no name that the setting could allow
        (refusal("example.com", "http://evil\r\nERROR \x1b[31m"), "CSRF_TRUSTED_ORIGINS"),
    ):
        assert found is not None
        assert found.reason is not None
        assert setting in found.reason
        assert found.reason.isprintable()


@pytest.mark.process
def test_a_refused_request_is_told_so_and_logged_in_one_line_that_names_the_setting() -> None:
    with serving_http() as (process, address):
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "http://evil.example"}, 403),
            ({"Host": "127.0.0.1:1"}, 406),  # the SDK's answer: it was reached
        ):
            answer = Request(address, "/mcp", headers=headers)
            assert answer.status == status
            assert b"evil" not in answer.read()
        assert process.wait_for(r"Refused a request for '/mcp': .*'evil\.example'.*ALLOWED_HOSTS")
        assert process.wait_for(r"Refused a request for '/mcp': .*'http://evil\.example'.*CSRF_TRUSTED_ORIGINS")
        assert "Traceback" not in process.errors


@override_settings(ALLOWED_HOSTS=["example.com"])
def test_transport_security_that_the_user_gives_takes_the_place_of_djangos_rules() -> None:
    security = TransportSecuritySettings(enable_dns_rebinding_protection=True, allowed_hosts=["own.example"])
    handler = StreamableHTTPHandler(MCPServer("a server"), transport_security=security)

    async def statuses() -> list[int]:
        found = []
        for host in ("own.example", "example.com"):
            transport = httpx2.ASGITransport(handler)  # type: ignore[arg-type]
            async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                found.append((await client.get("/")).status_code)
        await lifecycle.close()
        return found

    assert anyio.run(statuses) == [400, 421]  # the first is the SDK's: no session


@override_settings(DEBUG=False, ALLOWED_HOSTS=["example.com"], USE_X_FORWARDED_HOST=True)
def test_a_header_with_an_underscore_does_not_pass_for_one_with_a_hyphen() -> None:
    scope: dict[str, Any] = {"headers": [(b"host", b"evil.example"), (b"x_forwarded_host", b"example.com")]}
    assert hosts.refusal(scope) is not None
