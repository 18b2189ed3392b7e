"""``manage.py mcptoken``, as a process of its own."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.harness import MANAGE, ROOT, environment
from tests.tokens.test_tokens import SETTINGS, TEXT, issue

from django.utils import timezone  # isort: skip - after Django is set up

from mcp_serving.tokens.models import Token  # isort: skip

pytestmark = pytest.mark.usefixtures("users")

UNKNOWN = "mcp_" + "0" * 12


def mcptoken(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAGE, "mcptoken", *arguments],
        env=environment(**SETTINGS | env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )


def created(*arguments: str) -> Token:
    done = mcptoken("create", *arguments)
    assert done.returncode == 0, done.stderr
    return Token.objects.get(key_id=done.stdout[4:16])


def test_create_prints_the_token_alone_on_standard_output_and_what_it_is_beside_it() -> None:
    done = mcptoken("create", "ann", "--name", "laptop", "--scope", "read", "--scope", "write", "--expires", "never")
    text = done.stdout.removesuffix("\n")
    assert TEXT.fullmatch(text)
    assert Token.objects.verify(text) is not None
    assert done.stderr == (
        f"laptop ({text[:16]}) of ann, scopes: read write, expires: never. "
        "The token on standard output is not stored, and cannot be shown again.\n"
    )


@pytest.mark.parametrize(
    ("given", "lifetime"),
    [([], "90d"), (["12h"], "12h"), (["30d"], "30d"), (["8w"], "8w")],
)
def test_a_token_expires_after_the_time_given_or_90_days(given: list[str], lifetime: str) -> None:
    expected = timedelta(**{{"h": "hours", "d": "days", "w": "weeks"}[lifetime[-1]]: int(lifetime[:-1])})
    token = created("ann", *(["--expires", *given] if given else []))
    assert token.expires is not None
    assert abs(token.expires - token.created - expected) < timedelta(seconds=10)


@pytest.mark.parametrize(
    ("given", "expires"),
    [
        ("2099-01-31", "2099-01-31T00:00:00-06:00"),
        ("2099-01-31T12:30", "2099-01-31T12:30:00-06:00"),
        ("2099-01-31T12:30Z", "2099-01-31T12:30:00+00:00"),
    ],
)
def test_a_date_is_its_first_moment_and_a_time_is_in_the_projects_time_zone(given: str, expires: str) -> None:
    token = created("ann", "--expires", given)
    assert token.expires == datetime.fromisoformat(expires)


def test_without_time_zones_every_action_works_too() -> None:
    for expires in ("90d", "2099-01-31", "2099-01-31T12:30+02:00", "never"):
        done = mcptoken("create", "ann", "--name", "zoneless", "--expires", expires, TEST_USE_TZ="0")
        assert (done.returncode, len(done.stdout)) == (0, 61), done.stderr
    listed = mcptoken("list", TEST_USE_TZ="0")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.count("zoneless") == 4
    assert "2099-01-31 00:00" in listed.stdout
    Token.objects.filter(name="zoneless").delete()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ann", "--expires", "9999-12-31T23:00"], "--expires '9999-12-31T23:00' is no time: "),
        (["stranger"], "There is no user 'stranger': give the username of one that exists."),
        (["gone"], "'gone' is not active: the token would not work."),
        (["ann", "--expires", "soon"], "--expires 'soon' is no time: give one from now (12h, 30d, 8w), a date or "),
        (["ann", "--expires", "2099-02-30"], "--expires '2099-02-30' is no time: "),
        (["ann", "--expires", "99999999999d"], "--expires '99999999999d' is no time: "),
        (["ann", "--expires=-1d"], "--expires '-1d' is no time: "),
        (["ann", "--expires", ""], "--expires '' is no time: "),
        (["ann", "--expires", "0h"], "has passed: give a later time."),
        (["ann", "--expires", "2001-01-01"], "2001-01-01 00:00 has passed: give a later time."),
        (["ann", "--scope", "café"], "'café' is no scope: give ASCII characters"),
        (["ann", "--name", "two\nlines"], "'two\\nlines' cannot be a name"),
        (["ann", "--name", "x" * 101], "at most 100 characters"),
    ],
)
def test_what_cannot_be_created_is_one_line_that_says_what_can(arguments: list[str], message: str) -> None:
    before = Token.objects.count()
    done = mcptoken("create", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert Token.objects.count() == before


def test_list_shows_the_valid_tokens_and_with_all_the_others_too() -> None:
    Token.objects.all().delete()
    valid, text = issue(name="laptop", scopes=["read", "write"])
    Token.objects.verify(text)
    of_bob, _ = issue("bob", expires=timezone.now() + timedelta(days=1))
    expired, _ = issue()
    Token.objects.filter(pk=expired.pk).update(expires=timezone.now())
    revoked, _ = issue()
    Token.objects.filter(pk=revoked.pk).revoke()

    def listed(*arguments: str) -> dict[str, str]:
        done = mcptoken("list", *arguments)
        assert done.returncode == 0, done.stderr
        assert text[17:] not in done.stdout
        header, *rows = done.stdout.splitlines()
        assert header.split() == ["TOKEN", "USER", "NAME", "SCOPES", "STATE", "EXPIRES", "LAST", "USED"]
        return {row.split()[0]: row for row in rows}

    assert listed().keys() == {valid.prefix, of_bob.prefix}
    assert listed("--user", "bob").keys() == {of_bob.prefix}
    everything = listed("--all")
    assert everything.keys() == {valid.prefix, of_bob.prefix, expired.prefix, revoked.prefix}
    assert " ann " in everything[valid.prefix]
    assert "  laptop  read write  active " in everything[valid.prefix]
    assert f"{timezone.now():%Y-%m-%d}" in everything[valid.prefix]
    assert " active " in everything[of_bob.prefix]
    assert everything[of_bob.prefix].endswith("never")
    assert " expired " in everything[expired.prefix]
    assert " revoked " in everything[revoked.prefix]


def test_list_of_an_unknown_user_is_one_line() -> None:
    done = mcptoken("list", "--user", "stranger")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "CommandError: There is no user 'stranger': give the username of one that exists.\n"


@pytest.mark.parametrize("form", ["{0.prefix}", "{0.key_id}", "{1}"])
def test_revoke_takes_what_is_listed_the_key_id_alone_or_the_token_itself(form: str) -> None:
    token, text = issue(name="laptop")
    done = mcptoken("revoke", form.format(token, text))
    assert (done.returncode, done.stdout) == (0, f"Revoked laptop ({token.prefix}) of ann.\n")
    assert Token.objects.verify(text) is None


def revoked_token() -> str:
    token, _ = issue()
    Token.objects.filter(pk=token.pk).revoke()
    return token.prefix


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UNKNOWN, f"There is no token {UNKNOWN}: `mcptoken list --all` has all that there are."),
        (lambda: "nonsense", "'nonsense' is no token: give it as `mcptoken list` does, such as mcp_0a1b2c3d4e5f."),
        (revoked_token, " is revoked already, since "),
    ],
)
def test_what_cannot_be_revoked_is_one_line_and_nothing_is_revoked(make: Any, message: str) -> None:
    _, text = issue()
    done = mcptoken("revoke", text, make())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert Token.objects.verify(text) is not None


def test_a_mistyped_token_is_not_repeated_on_the_terminal() -> None:
    _, text = issue()
    done = mcptoken("revoke", text + "x")
    assert text[17:] not in done.stderr
    assert f"{text[:16]!r} is no token" in done.stderr


def test_without_its_table_the_command_says_so_in_one_line() -> None:
    done = mcptoken("list", TEST_SQLITE=":memory:")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: The database cannot be used: OperationalError: no such table")
    assert "Has `manage.py migrate` been run?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_action_is_refused_with_those_that_there_are() -> None:
    done = mcptoken("destroy")
    assert done.returncode == 2
    assert all(f"'{action}'" in done.stderr for action in ("create", "list", "revoke"))
