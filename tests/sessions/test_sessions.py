"""A session belongs to the user who opened it, and each user has a limited number of sessions and streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from django.test import override_settings
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from starlette.authentication import SimpleUser, UnauthenticatedUser

from mcp_serving.security.principal import principal
from mcp_serving.sessions import session_ids
from mcp_serving.sessions.session_ids import SessionId
from tests.support.access_servers import AccessServers, bearer, logged_in
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, call, wait_until
from tests.support.http_client import listen
from tests.support.raw_http import Request, headers_of

Headers = dict[str, str]


def opened(site: AccessServers, path: str, who: Headers) -> str:
    """The id of a new session."""
    opening = site.ask(path, **who)
    assert opening.status_code == 200, opening.content
    session = opening.headers[MCP_SESSION_ID_HEADER]
    said = httpx2.post(site.address + path, json=INITIALIZED, headers={**headers_of(INITIALIZED, session), **who})
    assert said.status_code == 202
    return session


def ended(site: AccessServers, path: str, who: Headers, session: str) -> int:
    return httpx2.delete(site.address + path, headers={"Mcp-Session-Id": session, **who}).status_code


ATTEMPTS = ["POST", "answer", "GET", "DELETE", "resume"]


def attempted(site: AccessServers, path: str, how: str, who: Headers, session: str) -> tuple[int, Headers, bytes]:
    """The whole response to one way of using a session."""
    url = site.address + path
    common = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25", **who}
    stream = {**common, "Accept": "text/event-stream"}
    message = call(1, "who")
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {}}}
    json_headers = {"Accept": "application/json, text/event-stream", **common}
    if how == "GET":
        got = httpx2.get(url, headers=stream, timeout=DEADLINE)
    elif how == "resume":
        got = httpx2.get(url, headers={**stream, "Last-Event-ID": "1"}, timeout=DEADLINE)
    elif how == "DELETE":
        got = httpx2.delete(url, headers=common)
    else:
        got = httpx2.post(url, json=message if how == "POST" else answer, headers=json_headers)
    return got.status_code, {k: v for k, v in got.headers.items() if k != "date"}, got.content


OWNERS = {
    "users": ("/public", "ann", "bob"),
    "a user, and nobody": ("/public", "ann", ""),
    "nobody, and a user": ("/public", "", "ann"),
    "tokens of users": ("/token", "ann", "bob"),
    "tokens": ("/userless", "one", "two"),
}


def shown(path: str, name: str) -> Headers:
    """The headers of a user of this name."""
    if not name:
        return {}
    return logged_in(name) if path == "/public" else bearer(f"{name}-token")


@pytest.mark.process
@pytest.mark.parametrize("how", ATTEMPTS)
@pytest.mark.parametrize(("path", "owner", "other"), OWNERS.values(), ids=OWNERS)
def test_the_session_of_another_user_cannot_be_told_from_a_missing_one(
    path: str, owner: str, other: str, how: str, site: AccessServers
) -> None:
    mine, theirs = shown(path, owner), shown(path, other)
    session = opened(site, path, mine)
    over = opened(site, path, theirs)
    assert ended(site, path, theirs, over) == 200
    foreign = attempted(site, path, how, theirs, session)
    assert foreign[0] == 404
    assert foreign == attempted(site, path, how, theirs, over)
    for unknown in ("0" * 32, "nonsense", session[:32], session[:-1], over + "A", session.swapcase()):
        assert foreign == attempted(site, path, how, theirs, unknown)
    status, _, content = attempted(site, path, "POST", mine, session)
    assert (status, b'"isError":false' in content) == (200, True)


@pytest.mark.process
@pytest.mark.parametrize("how", ATTEMPTS)
def test_an_expired_session_cannot_be_told_from_a_missing_one(how: str, site: AccessServers) -> None:
    who = logged_in("ann")
    session = opened(site, "/fleeting", who)
    for _ in range(10):
        time.sleep(2)  # longer than the idle timeout: each look at the session would keep it alive
        expired = attempted(site, "/fleeting", how, who, session)
        if expired[0] == 404:
            break
    assert expired[0] == 404
    for unknown in ("0" * 32, "nonsense", session[:-1]):
        assert expired == attempted(site, "/fleeting", how, who, unknown)


@pytest.mark.process
def test_a_call_whose_client_ends_the_session_is_answered_with_404(site: AccessServers) -> None:
    def slow_ones() -> int:
        return site.notes.read_text().split().count("slow") if site.notes.exists() else 0

    session = opened(site, "/json", {})
    message = call(1, "slow")
    before = slow_ones()
    waiting = Request(site.address, "/json", "POST", headers_of(message, session), message, wait=False)
    wait_until(lambda: slow_ones() > before, "the call runs")
    assert ended(site, "/json", {}, session) == 200
    assert waiting.answered().status == 404
    assert b"Session terminated" in waiting.read()


@pytest.mark.process
@pytest.mark.parametrize("path", ["/login", "/fleeting"])
def test_without_an_event_store_resuming_opens_a_new_stream(path: str, site: AccessServers) -> None:
    who = logged_in("ann")
    session = opened(site, path, who)
    headers = {"Mcp-Session-Id": session, "Accept": "text/event-stream", "Last-Event-ID": "1", **who}
    stream = Request(site.address, path, "GET", headers)
    assert (stream.status, stream.header("content-type")) == (200, "text/event-stream")
    stream.leave()


@pytest.mark.process
def test_a_user_who_logs_out_loses_the_session(site: AccessServers) -> None:
    from django.contrib.sessions.backends.db import SessionStore

    who = logged_in("ann")
    session = opened(site, "/public", who)
    guarded = opened(site, "/login", who)
    assert attempted(site, "/public", "POST", who, session)[0] == 200
    SessionStore(who["Cookie"].removeprefix("sessionid=")).flush()
    for how in ATTEMPTS:
        assert attempted(site, "/public", how, who, session)[0] == 404
        assert attempted(site, "/login", how, who, guarded)[0] == 401
    again = logged_in("bob")
    assert attempted(site, "/login", "POST", again, guarded)[0] == 404


@pytest.mark.process
@pytest.mark.parametrize("path", ["/token", "/oauth", "/userless"])
def test_a_revoked_token_loses_its_session_and_another_token_of_the_user_cannot_use_it(
    path: str, site: AccessServers
) -> None:
    old, new = bearer(f"ann-token-{path[1:]}-old"), bearer(f"ann-token-{path[1:]}-new")
    session = opened(site, path, old)
    assert attempted(site, path, "POST", old, session)[0] == 200
    site.say(f"ann-token-{path[1:]}-old")
    for how in ATTEMPTS:
        assert attempted(site, path, how, old, session)[0] == 401
        assert attempted(site, path, how, new, session)[0] == 404


@pytest.mark.process
def test_a_deactivated_user_loses_the_session(site: AccessServers) -> None:
    from django.contrib.auth.models import User

    User.objects.create_user("leaver")
    cookie, token = logged_in("leaver"), bearer("leaver-token")
    by_cookie, by_token = opened(site, "/login", cookie), opened(site, "/token", token)
    User.objects.filter(username="leaver").update(is_active=False)
    for how in ATTEMPTS:
        assert attempted(site, "/login", how, cookie, by_cookie)[0] == 401
        assert attempted(site, "/token", how, token, by_token)[0] == 401
    User.objects.filter(username="leaver").delete()


def test_users_that_are_not_models_have_different_principals() -> None:
    alice, mallory = principal({"user": SimpleUser("alice")}), principal({"user": SimpleUser("mallory")})
    assert alice == principal({"user": SimpleUser("alice")})
    assert len({alice, mallory, principal({}), principal({"user": UnauthenticatedUser()})}) == 3
    assert principal({}) is None


def test_users_of_two_models_with_the_same_key_have_different_principals() -> None:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import User

    class Customer(AbstractBaseUser):
        class Meta:
            app_label = "shop"

    class Clerk(User):
        class Meta:
            app_label = "shop"
            proxy = True

    user, customer, clerk = ({"user": made} for made in (User(pk=7), Customer(pk=7), Clerk(pk=7)))
    assert principal(user) != principal(customer)
    assert principal(user) == principal(clerk), "a proxy is the same user"
    assert principal(user) != principal({"user": User(pk=8)})


def opened_session(owner: str | None) -> bytes:
    """The id that the client of a new session gets."""
    told: list[bytes] = []

    async def send(message: Any) -> None:
        told.extend(value for _, value in message["headers"])

    start = {"type": "http.response.start", "status": 200, "headers": [(session_ids.HEADER, b"an-id")]}
    asyncio.run(SessionId.new("").signing(send, owner)(start))  # type: ignore[arg-type]
    return told[0]


def test_a_session_id_is_valid_as_long_as_the_key_that_signed_it() -> None:
    def is_known(session: bytes, owner: str | None) -> bool:
        return SessionId.of([session], owner).sdk_id == "an-id"

    with override_settings(SECRET_KEY="first"):
        session = opened_session("ann")
        assert all(is_known(session, "ann") for _ in range(2))
        assert not is_known(session, "bob")
        assert not is_known(session, None)
    with override_settings(SECRET_KEY="second", SECRET_KEY_FALLBACKS=["first"]):
        assert is_known(session, "ann")
    with override_settings(SECRET_KEY="second"):
        assert not is_known(session, "ann")


def test_invalid_session_ids_are_not_cached() -> None:
    kept = session_ids._unsigned.cache_info().currsize
    assert all(SessionId.of([b"made-up.nonce:%d" % number], None) == SessionId() for number in range(10))
    assert session_ids._unsigned.cache_info().currsize == kept


@pytest.mark.process
def test_a_request_with_two_session_ids_gets_404(site: AccessServers) -> None:
    session = opened(site, "/public", {})
    message = call(1, "who")
    headers = [*headers_of(message, session).items(), ("Mcp-Session-Id", session)]
    assert httpx2.post(f"{site.address}/public", json=message, headers=headers).status_code == 404


# Resuming


def result_with_event_id(site: AccessServers, session: str, who: Headers) -> tuple[str, str]:
    """The id of the event before the result of a call, and that of the result."""
    message = call(1, "who")
    body = httpx2.post(
        f"{site.address}/public", json=message, headers={**headers_of(message, session), **who}
    ).content.decode()
    ids = [line.removeprefix("id: ") for line in body.splitlines() if line.startswith("id: ")]
    return ids[0], ids[-1]


@contextmanager
def resumed(site: AccessServers, session: str, event: str, who: Headers) -> Iterator[Request]:
    headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25", "Accept": "text/event-stream", **who}
    stream = Request(site.address, "/public", "GET", {**headers, "Last-Event-ID": event})
    try:
        yield stream
    finally:
        stream.leave()


@pytest.mark.process
def test_an_event_id_resumes_only_its_own_session(site: AccessServers) -> None:
    """Both calls have the id 1, which is all that the SDK tells an event store."""
    ann, bob = logged_in("ann"), logged_in("bob")
    anns, bobs = opened(site, "/public", ann), opened(site, "/public", bob)
    anns_event, _ = result_with_event_id(site, anns, ann)
    bobs_event, _ = result_with_event_id(site, bobs, bob)
    for session, event, who, name in ((anns, anns_event, ann, "ann"), (bobs, bobs_event, bob, "bob")):
        with resumed(site, session, event, who) as stream:
            assert stream.status == 200
            assert f'"text":"{name}, in the scope {name}"' in stream.event()["data"]
    for event in (anns_event, "1", "2", "nonsense", anns_event[:-1]):
        with resumed(site, bobs, event, bob) as stream:
            assert stream.status == 200
            assert stream.response.read() == b""  # and it ends


# Bounds


@pytest.mark.process
def test_the_sessions_of_one_user_are_limited_and_others_can_still_open_some(site: AccessServers) -> None:
    ann, bob, clerk = bearer("ann-token"), bearer("bob-token"), bearer("clerk-token")
    path = "/bounded"
    first, second = opened(site, path, ann), opened(site, path, ann)
    refused = site.ask(path, **ann)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.content == b"You have too many open sessions.\n"
    site.process.wait_for("Refused a request for '/bounded': .* as max_sessions_per_user allows")
    theirs = [opened(site, path, bob), opened(site, path, bob)]
    assert site.ask(path, **clerk).status_code == 503  # the SDK's max_sessions, of all together
    assert ended(site, path, ann, first) == 200
    for _ in range(20):  # what has ended does not count
        assert ended(site, path, ann, opened(site, path, ann)) == 200
    for session, who in ((second, ann), (theirs[0], bob), (theirs[1], bob)):
        assert ended(site, path, who, session) == 200


def sent(site: AccessServers, session: str, message: dict[str, Any], who: Headers) -> httpx2.Response:
    headers = {**headers_of(message, session), **who}
    return httpx2.post(f"{site.address}/bounded", json=message, headers=headers, timeout=DEADLINE)


def slow_call(site: AccessServers, session: str, number: int, who: Headers) -> tuple[Request, str]:
    """A call that runs until the test says "go", once it has reported; and the id of its first event."""
    message = call(number, "slow")
    message["params"]["_meta"] = {"progressToken": number}
    headers = {**headers_of(call(number, "slow"), session), **who}
    stream = Request(site.address, "/bounded", "POST", headers, message)
    first = stream.event()
    assert "notifications/progress" in stream.event()["data"]
    return stream, first["id"]


@pytest.mark.process
def test_the_streams_of_a_session_are_limited_and_it_can_always_be_ended(site: AccessServers) -> None:
    ann = bearer("ann-token")
    session = opened(site, "/bounded", ann)
    running, event = slow_call(site, session, 1, ann)
    running.leave()
    headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25", "Accept": "text/event-stream", **ann}
    standing = Request(site.address, "/bounded", "GET", headers)
    resumed = Request(site.address, "/bounded", "GET", {**headers, "Last-Event-ID": event})
    assert (standing.status, resumed.status) == (200, 200)
    refused = httpx2.get(f"{site.address}/bounded", headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    site.process.wait_for("as many streams as max_streams_per_session allows")
    assert ended(site, "/bounded", ann, session) == 200
    for stream in (standing, resumed):
        stream.leave()


@pytest.mark.process
def test_the_running_calls_of_a_session_are_limited_even_if_its_client_has_left(
    site: AccessServers,
) -> None:
    ann = bearer("ann-token")
    session, another = opened(site, "/bounded", ann), opened(site, "/bounded", ann)
    (waiting, _), (left, _) = slow_call(site, session, 1, ann), slow_call(site, session, 2, ann)
    left.leave()
    assert "Too many calls of this session are running" in sent(site, session, call(3, "who"), ann).text
    assert '"isError":false' in sent(site, another, call(3, "who"), ann).text
    # What is no call gets in: an answer, a cancellation, which makes room, and a ping.
    assert sent(site, session, {"jsonrpc": "2.0", "id": 9, "method": "ping"}, ann).status_code == 200
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
    assert sent(site, session, cancelled, ann).status_code == 202
    wait_until(lambda: '"isError":false' in sent(site, session, call(4, "who"), ann).text, "room for a call")
    site.say("go")
    assert b"for AnonymousUser" in waiting.read()
    for each in (session, another):
        assert ended(site, "/bounded", ann, each) == 200


class Waiting:
    """Calls of a tool that waits until the test says a word, each on a connection of its own."""

    def __init__(self, site: AccessServers, path: str, tool: str, word: str, *, modern: bool) -> None:
        self._site, self._path, self._tool, self._word, self._modern = site, path, tool, word, modern
        self._requests: list[Request] = []

    def send(self, who: Headers, session: str | None = None) -> None:
        message = call(len(self._requests), self._tool, modern=self._modern, word=self._word)
        headers = {**headers_of(message, session), **who}
        self._requests.append(Request(self._site.address, self._path, "POST", headers, message, wait=False))

    def started(self) -> int:
        return self._site.notes.read_text().count(f"started-{self._word}") if self._site.notes.exists() else 0

    def wait_for(self, number: int) -> None:
        wait_until(lambda: self.started() == number, f"{number} calls, not {self.started()}")

    def let_go_on(self) -> list[bytes]:
        """Say the word, and return the responses."""
        self._site.say(self._word)
        for request in self._requests:
            request.answered()
        return [request.read() for request in self._requests]


@pytest.mark.process
def test_the_running_calls_of_a_user_without_sessions_are_limited(site: AccessServers) -> None:
    ann, bob = bearer("ann-token"), bearer("bob-token")
    running = Waiting(site, "/bounded", "waits", "limited", modern=True)
    for _ in range(2):
        running.send(ann)
    running.wait_for(2)
    assert "Too many calls of this user are running" in site.ask("/bounded", modern=True, **ann).text
    assert '"isError":false' in site.ask("/bounded", modern=True, **bob).text
    assert all(b"done" in response for response in running.let_go_on())
    assert '"isError":false' in site.ask("/bounded", modern=True, **ann).text


@pytest.mark.process
@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "2025-11-25"])
def test_the_slow_calls_of_a_user_leave_threads_for_others(site: AccessServers, modern: bool) -> None:
    ann, bob = bearer("ann-token"), bearer("bob-token")
    mine, theirs = (None if modern else opened(site, "/token", who) for who in (ann, bob))
    slow = Waiting(site, "/token", "waits_in_a_thread", f"shared-{modern}", modern=modern)
    for _ in range(20):
        slow.send(ann, mine)
    slow.wait_for(6)  # three quarters of the eight threads
    quick = call(1, "quick_in_a_thread", modern=modern)
    for _ in range(5):
        response = httpx2.post(f"{site.address}/token", json=quick, headers={**headers_of(quick, theirs), **bob})
        assert "done" in response.text
    assert slow.started() == 6
    assert all(b"done" in response for response in slow.let_go_on())
    assert slow.started() == 20


@pytest.mark.process
def test_the_listen_streams_of_one_user_are_limited(site: AccessServers) -> None:
    def subscribe(token: str, **more: str) -> Request:
        headers = {**headers_of(listen()), **bearer(token), **more}
        return Request(site.address, "/bounded", "POST", headers, listen())

    streams = [subscribe("ann-token"), subscribe("ann-token"), subscribe("bob-token"), subscribe("ann-token")]
    streams.append(subscribe("ann-token", **{"Mcp-Session-Id": "of an older client"}))
    assert [stream.status for stream in streams] == [200, 200, 200, 429, 429]
    for stream in streams:
        stream.leave()


@pytest.mark.process
@pytest.mark.parametrize("uris", [["open://" + "x" * 2048], [f"open://{number}" for number in range(4_000)]])
def test_a_subscription_to_too_many_or_too_long_uris_is_refused(site: AccessServers, uris: list[str]) -> None:
    message = listen()
    message["params"]["notifications"]["resourceSubscriptions"] = uris
    answer = httpx2.post(f"{site.address}/public", json=message, headers=headers_of(message), timeout=DEADLINE)
    assert "error" in answer.text
    assert str(len(uris) if len(uris) > 1 else 2048) in answer.text
    assert len(answer.content) < 1000


@pytest.mark.process
def test_headers_that_are_too_large_get_431(site: AccessServers) -> None:
    assert site.ask("/bounded", **bearer("ann-token"), **{"X-Filler": "x" * 4000}).status_code == 431
    site.process.wait_for("its headers have more than max_header_size=4000 bytes")


@pytest.mark.process
def test_a_body_that_is_too_large_gets_413(site: AccessServers) -> None:
    message = {**INITIALIZE, "params": {**INITIALIZE["params"], "filler": "x" * (4 * 1024 * 1024)}}
    for path in ("/public", "/token"):
        who = shown(path, "ann")
        assert (
            httpx2.post(site.address + path, json=message, headers={**headers_of(INITIALIZE), **who}).status_code == 413
        )
