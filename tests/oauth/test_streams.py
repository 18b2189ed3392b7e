"""Sessions and streams of an app that its user disconnects, or whose token expires, in both protocol generations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support import in_django
from tests.support.harness import INITIALIZE, INITIALIZED, MODERN_META, call
from tests.support.oauth import client_of, serving_with_oauth
from tests.support.raw_http import ACCEPT, Request, headers_of

from django.utils import timezone  # isort: skip - after Django is set up
from oauth2_provider.models import AccessToken  # isort: skip

from mcp_serving.oauth.models import ConnectedApp  # isort: skip

pytestmark = [pytest.mark.usefixtures("users_of_its_own"), pytest.mark.process]

LISTEN = {
    "jsonrpc": "2.0",
    "id": "listen",
    "method": "subscriptions/listen",
    "params": {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META},
}


@pytest.fixture(scope="module", params=["runmcp", "uvicorn"])
def address(request: pytest.FixtureRequest, users: None) -> Iterator[str]:
    with serving_with_oauth(request.param) as address:
        yield address


class App:
    """An app that a user has connected."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._token = client_of("ann", resource=f"{address}/mcp").tokens()["access_token"]
        self._session: str | None = None

    def open_session(self) -> None:
        opening = self.post(INITIALIZE)
        opening.read()
        self._session = opening.header("mcp-session-id")
        self.post(INITIALIZED).read()

    def post(self, message: dict[str, Any]) -> Request:
        headers = {**headers_of(message, self._session), "Authorization": f"Bearer {self._token}"}
        return Request(self._address, "/mcp", "POST", headers, message)

    def stream(self, modern: bool) -> Request:
        """A stream that stands: ``subscriptions/listen``, or the GET stream of the session."""
        return self.post(LISTEN) if modern else self.without_body("GET")

    def without_body(self, method: str) -> Request:
        headers = {"Accept": ACCEPT, "MCP-Protocol-Version": "2025-11-25", "Authorization": f"Bearer {self._token}"}
        return Request(self._address, "/mcp", method, {**headers, "Mcp-Session-Id": self._session or ""})


def status_of(response: Request) -> int:
    """The status of a response, whose rest is not wanted."""
    response.leave()
    return response.status


def test_after_a_disconnect_the_next_request_of_a_session_or_a_stream_is_refused(address: str) -> None:
    app = App(address)
    app.open_session()
    streams = [app.stream(modern) for modern in (False, True)]
    assert [each.status for each in streams] == [200, 200]
    assert status_of(app.post(call(1, "who"))) == 200
    assert status_of(app.post(call(1, "who", modern=True))) == 200
    ConnectedApp.objects.filter(user=in_django.user("ann")).disconnect()
    refused = [app.post(call(2, "who")), app.post(call(2, "who", modern=True)), app.stream(False), app.stream(True)]
    refused.append(app.without_body("DELETE"))
    assert [status_of(each) for each in refused] == [401] * 5
    for each in streams:
        each.leave()


@pytest.mark.parametrize("modern", [False, True])
def test_an_open_stream_ends_when_its_token_expires(address: str, modern: bool) -> None:
    for seconds in (2, 8, 32):  # on a busy machine, a token may expire before the stream is open
        app = App(address)
        if not modern:
            app.open_session()
        AccessToken.objects.filter(user__isnull=False).update(expires=timezone.now() + timedelta(seconds=seconds))
        stream = app.stream(modern)
        if stream.status == 200:
            break
        stream.leave()
    assert stream.status == 200
    stream.read()  # to its end, which is a clean one
    assert status_of(app.stream(modern)) == 401
