"""How clients become known: dynamic registration and client ID metadata documents, and the limits of both."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from typing import Any

import pytest
import trustme
from oauth2_provider import cimd

from tests.support.oauth import SITE, Browser, OAuthClient, ask, browser_of, client_of, register, told

from django.conf import settings  # isort: skip - after Django is set up
from django.core.management import CommandError, call_command  # isort: skip
from django.test import override_settings  # isort: skip
from django.utils import timezone  # isort: skip
from oauth2_provider.models import AccessToken, Application  # isort: skip

from mcp_serving.oauth.models import ConnectedApp  # isort: skip
from mcp_serving.oauth.provider import registrations  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")

METADATA = {
    "client_name": "Notes client",
    "redirect_uris": ["https://client.example/callback"],
    "token_endpoint_auth_method": "none",
}


def with_oauth(**changes: Any) -> Any:
    return override_settings(OAUTH2_PROVIDER={**settings.OAUTH2_PROVIDER, **changes})


# Dynamic registration


def test_a_client_registers_without_a_secret() -> None:
    response = register(METADATA, "192.0.2.1")
    assert response.status_code == 201
    assert response["Access-Control-Allow-Origin"] == "*"
    registered = response.json()
    assert registered["token_endpoint_auth_method"] == "none"
    assert registered["grant_types"] == ["authorization_code", "refresh_token"]
    assert "client_secret" not in registered


def test_a_client_with_a_secret_signs_in_too() -> None:
    client = OAuthClient(browser_of("ann"))
    secret = client.register(token_endpoint_auth_method="client_secret_post")["client_secret"]
    code = client.code()
    assert client.exchange(code).status_code == 401
    assert client.exchange(client.code(), client_secret=secret).status_code == 200


def test_grant_types_that_this_server_does_not_have_are_left_out() -> None:
    device = "urn:ietf:params:oauth:grant-type:device_code"
    response = register({**METADATA, "grant_types": ["authorization_code", device, "refresh_token"]}, "192.0.2.1")
    assert response.status_code == 201
    assert response.json()["grant_types"] == ["authorization_code", "refresh_token"]


def test_a_registration_in_the_form_of_an_editors_leads_to_a_sign_in_on_any_port() -> None:
    client = OAuthClient(browser_of("ann"), redirect_uri="http://127.0.0.1:54321/")
    client.register(
        client_name="An editor",
        client_uri="https://editor.example",
        application_type="native",
        grant_types=["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
        response_types=["code"],
        redirect_uris=["https://editor.example/redirect", "http://127.0.0.1/", "http://127.0.0.1:33418/"],
        scope="notes:read",
    )
    assert told(ask(client.tokens()["access_token"])).startswith("ann through")


@pytest.mark.parametrize("grant_type", ["client_credentials", "password", "implicit"])
def test_no_client_registers_for_tokens_without_a_user(grant_type: str) -> None:
    refused = register({**METADATA, "grant_types": [grant_type]}, "192.0.2.1")
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_client_metadata")


def test_a_client_that_was_changed_afterwards_gets_no_token_without_a_user_either() -> None:
    registered = register({**METADATA, "token_endpoint_auth_method": "client_secret_post"}, "192.0.2.1").json()
    Application.objects.update(authorization_grant_type="client-credentials")
    given = {
        "grant_type": "client_credentials",
        "client_id": registered["client_id"],
        "client_secret": registered["client_secret"],
    }
    refused = Browser().post("/oauth/token/", given)
    assert (refused.status_code, refused.json()["error"]) == (400, "unauthorized_client")


def test_a_client_manages_its_registration_with_its_token_alone() -> None:
    registered = register(METADATA, "192.0.2.1").json()
    url = registered["registration_client_uri"].removeprefix(SITE)
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {registered['registration_access_token']}"}
    assert Browser().get(url).status_code == 401
    assert Browser().get(url, **bearer).json()["client_name"] == "Notes client"
    changed = {**METADATA, "grant_types": ["client_credentials"]}
    assert Browser().put(url, changed, content_type="application/json", **bearer).status_code == 400
    assert Browser().delete(url, **bearer).status_code == 204
    assert not Application.objects.exists()


BAD_BODIES = {
    "no JSON": b"{",
    "no object": b"[]",
    "too deep": b"[" * 10_000,
    "too large": json.dumps({**METADATA, "client_name": "x" * 20_000}).encode(),
    "a name that is no text": json.dumps({**METADATA, "client_name": {"a": ["b"]}}).encode(),
    "a null character": json.dumps({**METADATA, "client_name": "a\0b"}).encode(),
    "half a character": json.dumps({**METADATA, "client_name": "\ud800"}).encode(),
    "nested addresses": json.dumps({**METADATA, "redirect_uris": [["https://client.example/"]]}).encode(),
    "a name that is too long": json.dumps({**METADATA, "client_name": "x" * 300}).encode(),
    "no redirect": json.dumps({**METADATA, "redirect_uris": []}).encode(),
    "a script": json.dumps({**METADATA, "redirect_uris": ["javascript:alert(1)"]}).encode(),
    "an unknown scheme": json.dumps({**METADATA, "redirect_uris": ["evil://x/y"]}).encode(),
    "a fragment": json.dumps({**METADATA, "redirect_uris": ["https://client.example/#x"]}).encode(),
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_metadata_that_is_no_good_is_refused_in_words(body: bytes) -> None:
    refused = Browser().post("/oauth/register/", body, content_type="application/json")
    assert refused.status_code == 400
    assert refused.json()["error"] == "invalid_client_metadata"
    assert not Application.objects.exists()


def test_registration_can_be_turned_off() -> None:
    with with_oauth(DCR_ENABLED=False):
        assert register(METADATA, "192.0.2.1").status_code == 404
        found = Browser().get("/.well-known/oauth-authorization-server").json()
        assert "registration_endpoint" not in found


# A flood of registrations


def test_an_address_registers_so_many_clients_an_hour_and_others_are_not_concerned() -> None:
    statuses = [register(METADATA, "192.0.2.1").status_code for _ in range(23)]
    assert statuses == [201] * 20 + [429] * 3
    refused = register(METADATA, "192.0.2.1")
    assert refused.json()["error"] == "temporarily_unavailable"
    assert refused["Retry-After"] == "3600"
    assert register(METADATA, "192.0.2.2").status_code == 201
    with with_oauth(DCR_REGISTRATIONS_PER_HOUR=1):
        assert [register(METADATA, "192.0.2.3").status_code for _ in range(2)] == [201, 429]


def test_however_many_addresses_there_are_the_table_does_not_grow_without_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registrations, "MOST_UNUSED", 5)
    statuses = [register(METADATA, f"192.0.2.{number}").status_code for number in range(8)]
    assert statuses == [201] * 5 + [429] * 3
    assert "Turn registration off with OAUTH2_PROVIDER['DCR_ENABLED'] = False" in caplog.text
    assert Application.objects.count() == 5


def test_once_they_are_an_hour_old_unused_clients_make_room_and_used_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MOST_UNUSED", 5)
    used = client_of("ann")
    used.tokens()
    for number in range(5):
        assert register(METADATA, f"192.0.2.{number}").status_code == 201
    assert register(METADATA, "192.0.2.9").status_code == 429
    Application.objects.update(created=timezone.now() - timedelta(hours=2))
    assert register(METADATA, "192.0.2.9").status_code == 201
    assert Application.objects.count() == 2
    assert Application.objects.filter(client_id=used.client_id).exists()


def test_the_command_removes_the_clients_that_nobody_uses() -> None:
    used, expired = client_of("ann"), client_of("bob")
    used.tokens()
    expired.tokens()
    for number in range(3):
        register(METADATA, f"192.0.2.{number}")
    by_hand = Application.objects.create(client_type="public", authorization_grant_type="authorization-code")

    def clear(days: int) -> str:
        output = StringIO()
        call_command("clearmcpclients", days=days, stdout=output)
        return output.getvalue()

    assert clear(7) == "Removed 0 unused clients.\n"
    Application.objects.update(created=timezone.now() - timedelta(days=8))
    long_ago = timezone.now() - timedelta(days=60)
    AccessToken.objects.filter(application__client_id=expired.client_id, user__isnull=False).update(expires=long_ago)
    assert clear(7) == "Removed 4 unused clients.\n"
    assert set(Application.objects.values_list("client_id", flat=True)) == {used.client_id, by_hand.client_id}
    assert ConnectedApp.objects.count() == 1
    with pytest.raises(CommandError, match="--days is -1; it has to be a number from 0 to 36500"):
        call_command("clearmcpclients", days=-1)


# Client ID metadata documents

DOCUMENTS: dict[str, dict[str, Any]] = {
    "one method": {"token_endpoint_auth_method": "none", "grant_types": ["authorization_code", "refresh_token"]},
    "several methods, none not first": {
        "token_endpoint_auth_method": "private_key_jwt",
        "token_endpoint_auth_methods_supported": ["private_key_jwt", "none"],
        "token_endpoint_auth_signing_alg": "RS256",
        "jwks_uri": "https://client.example/keys.json",
    },
    "a grant type that is not used here": {
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer"],
    },
    "no method": {},
}


class Documents:
    """An https server on this machine that serves metadata documents, and counts its requests."""

    def __init__(self, port: int) -> None:
        self.origin = f"https://localhost:{port}"
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, str, bytes]] = {}

    def serve(self, path: str = "/client.json", **fields: Any) -> str:
        """A document that is right, but for ``fields``; its URL."""
        url = f"{self.origin}{path}"
        document = {
            "client_id": url,
            "client_name": "Documented client",
            "redirect_uris": ["https://client.example/callback"],
            **fields,
        }
        self.answers[path] = (200, "application/json", json.dumps(document).encode())
        return url


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> Iterator[Documents]:
    """The server, which django-oauth-toolkit takes for one at a public address with a certificate that it trusts."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            status, kind, body = server.answers.get(self.path, (404, "text/plain", b""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 302:
                self.send_header("Location", body.decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        server = Documents(listening.server_port)
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setattr(cimd.ssl, "create_default_context", lambda: trusting)
        monkeypatch.setattr(cimd, "_ip_is_public", lambda address: address == "127.0.0.1")
        monkeypatch.setattr(cimd, "_resolve_and_validate", lambda host, port: ["127.0.0.1"])
        yield server
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize("fields", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_client_with_a_document_signs_in_without_registering(documents: Documents, fields: dict[str, Any]) -> None:
    client = OAuthClient(browser_of("ann"), client_id=documents.serve(**fields))
    page = client.question().content.decode()
    assert "Documented client" in page
    assert documents.origin.removeprefix("https://") in page  # the host of the document, which the client has proved
    assert "The app chose its name itself" not in page
    token = client.tokens()["access_token"]
    assert told(ask(token)) == f"ann through {client.client_id}"
    assert documents.requests == ["/client.json"]


WRONG_DOCUMENTS: dict[str, dict[str, Any]] = {
    "of another client": {"client_id": "https://client.example/client.json"},
    "with a secret": {"client_secret": "secret"},
    "without redirects": {"redirect_uris": []},
    "with a key alone": {"token_endpoint_auth_method": "private_key_jwt"},
    "for tokens without a user": {"grant_types": ["client_credentials"]},
    "that is too large": {"client_name": "x" * 20_000},
    "with redirects to a script": {"redirect_uris": ["javascript:alert(1)"]},
}


@pytest.mark.parametrize("fields", WRONG_DOCUMENTS.values(), ids=WRONG_DOCUMENTS)
def test_a_document_that_is_no_good_is_an_unknown_client(documents: Documents, fields: dict[str, Any]) -> None:
    client = OAuthClient(browser_of("ann"), client_id=documents.serve(**fields))
    assert client.question().status_code == 400
    assert client.question().status_code == 400
    assert documents.requests == ["/client.json"]  # and is not downloaded again for a while
    assert not Application.objects.exists()


def test_a_document_that_changes_after_the_consent_counts_from_the_next_sign_in_on(documents: Documents) -> None:
    client = OAuthClient(browser_of("ann"), client_id=documents.serve())
    tokens = client.tokens()
    elsewhere = "https://elsewhere.example/callback"
    documents.serve(client_name="Another name", redirect_uris=[elsewhere])
    Application.objects.update(cimd_expires_at=timezone.now())
    assert client.question().status_code == 400  # the first address is not the client's any more
    page = client.question(redirect_uri=elsewhere).content.decode()
    assert "Another name" in page
    assert "Allow" in page
    assert ask(tokens["access_token"]).status_code == 200  # the consent to the client is as it was


def test_a_name_that_is_null_counts_as_left_out() -> None:
    assert register({**METADATA, "client_name": None}, "192.0.2.1").status_code == 201


def test_a_redirect_of_the_document_is_not_followed(documents: Documents) -> None:
    documents.answers["/elsewhere.json"] = (302, "application/json", f"{documents.origin}/client.json".encode())
    documents.serve()
    client = OAuthClient(browser_of("ann"), client_id=f"{documents.origin}/elsewhere.json")
    assert client.question().status_code == 400
    assert documents.requests == ["/elsewhere.json"]


def test_a_document_that_never_ends_is_given_up_after_its_time(documents: Documents) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, with_oauth(CIMD_FETCH_TIMEOUT_SECONDS=0.5):
        began = time.monotonic()
        url = f"https://localhost:{silent.getsockname()[1]}/client.json"
        assert OAuthClient(browser_of("ann"), client_id=url).question().status_code == 400
        assert time.monotonic() - began < 5


def test_documents_cannot_fill_the_table_either(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MOST_UNUSED", 2)
    statuses = []
    for number in range(4):
        url = documents.serve(f"/client{number}.json")
        statuses.append(OAuthClient(browser_of("ann"), client_id=url).question().status_code)
    assert statuses == [200, 200, 400, 400]
    assert documents.requests == ["/client0.json", "/client1.json"]


def test_documents_can_be_turned_off(documents: Documents) -> None:
    with with_oauth(CIMD_ENABLED=False):
        client = OAuthClient(browser_of("ann"), client_id=documents.serve())
        assert client.question().status_code == 400
        found = Browser().get("/.well-known/oauth-authorization-server").json()
        assert found["client_id_metadata_document_supported"] is False
    assert documents.requests == []


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> Iterator[list[str]]:
    """Each lookup of a name gives the next of these addresses; yields the addresses that were connected to."""
    connected: list[str] = []
    answers = iter(addresses)

    def lookup(host: str, port: Any, *_: Any, **__: Any) -> list[Any]:
        # urllib3 looks up the address that it is told to connect to, which is the address itself.
        address = host if host.replace(".", "").isdecimal() else next(answers)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]

    def connect(self: socket.socket, address: Any) -> None:
        connected.append(address[0])
        raise OSError("no network in this test")

    class Socket(socket.socket):
        pass

    monkeypatch.setattr(Socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(socket, "socket", Socket)
    yield connected


PRIVATE = {
    "this machine": "127.0.0.1",
    "a private network": "10.0.0.1",
    "another private network": "192.168.1.1",
    "the cloud's metadata": "169.254.169.254",
    "no address": "0.0.0.0",
    "a shared network": "100.64.0.1",
}


@pytest.mark.parametrize("address", PRIVATE.values(), ids=PRIVATE)
def test_a_document_on_a_private_address_is_never_downloaded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in (address, "client.example"):
        client = OAuthClient(browser_of("ann"), client_id=f"https://{host}/{secrets.token_hex(4)}.json")
        with resolving(monkeypatch, address) as connected:
            assert client.question().status_code == 400
        assert connected == []


@pytest.mark.parametrize("host", ["[::1]", "[::ffff:127.0.0.1]", "[fd00::1]", "[64:ff9b::7f00:1]", "localhost"])
def test_neither_is_one_on_a_private_address_in_another_spelling(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("it was connected to")

    monkeypatch.setattr(socket.socket, "connect", connect)
    client = OAuthClient(browser_of("ann"), client_id=f"https://{host}/client.json")
    assert client.question().status_code == 400


def test_a_name_that_leads_elsewhere_at_the_second_lookup_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = OAuthClient(browser_of("ann"), client_id="https://rebinding.example/client.json")
    with resolving(monkeypatch, "93.184.216.34", "127.0.0.1") as connected:
        assert client.question().status_code == 400
    assert connected == ["93.184.216.34"]


@pytest.mark.parametrize(
    "url",
    [
        "http://client.example/client.json",
        "https://client.example",
        "https://u:p@client.example/x",
        "https://c.example/../x",
    ],
)
def test_a_url_that_cannot_be_a_client_id_is_an_unknown_client(url: str) -> None:
    assert OAuthClient(browser_of("ann"), client_id=url).question().status_code == 400
