"""``manage.py mcptoken`` creates, lists and revokes tokens. Most tests call it in the process of the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO

import pytest

from tests.support.harness import MANAGE, ROOT, environment
from tests.tokens.test_tokens import SETTINGS, TEXT, issue

from django.core.management import CommandError, call_command  # isort: skip - after Django is set up
from django.test import override_settings  # isort: skip
from django.utils import timezone  # isort: skip

from mcp_serving.tokens.models import Token  # isort: skip

pytestmark = pytest.mark.usefixtures("users")

UNKNOWN = "mcp_" + "0" * 12


def mcptoken(*arguments: str) -> tuple[str, str]:
    """What the command writes to standard output and to standard error."""
    stdout, stderr = StringIO(), StringIO()
    call_command("mcptoken", *arguments, stdout=stdout, stderr=stderr)
    return stdout.getvalue(), stderr.getvalue()


def refusal(*arguments: str) -> str:
    """The error of the command, which is one line and comes with no output."""
    stdout = StringIO()
    with pytest.raises(CommandError) as refused:
        call_command("mcptoken", *arguments, stdout=stdout)
    message = str(refused.value)
    assert "\n" not in message
    assert stdout.getvalue() == ""
    return message


def process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAGE, "mcptoken", *arguments],
        env=environment(**SETTINGS | env),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def created(*arguments: str) -> Token:
    stdout, _ = mcptoken("create", *arguments)
    return Token.objects.get(key_id=stdout[4:16])


# As a process


@pytest.mark.process
def test_create_prints_only_the_token_on_standard_output_and_its_description_on_standard_error() -> None:
    done = process("create", "ann", "--name", "laptop", "--scope", "read", "--scope", "write", "--expires", "never")
    text = done.stdout.removesuffix("\n")
    assert TEXT.fullmatch(text)
    assert Token.objects.verify(text) is not None
    assert done.stderr == (
        f"laptop ({text[:16]}) of ann, scopes: read write, expires: never. "
        "The token on standard output is not stored and cannot be shown again.\n"
    )


@pytest.mark.process
def test_without_its_table_the_command_fails_with_one_line_that_names_migrate() -> None:
    done = process("list", TEST_SQLITE=":memory:")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("CommandError: The database cannot be used: OperationalError: no such table")
    assert "Has `manage.py migrate` been run?" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_an_unknown_action_is_refused_with_the_list_of_actions() -> None:
    done = process("destroy")
    assert done.returncode == 2
    assert all(f"'{action}'" in done.stderr for action in ("create", "list", "revoke"))


# create


@pytest.mark.parametrize(
    ("given", "lifetime"),
    [([], "90d"), (["12h"], "12h"), (["30d"], "30d"), (["8w"], "8w")],
)
def test_a_token_expires_after_the_given_lifetime_or_after_90_days(given: list[str], lifetime: str) -> None:
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
def test_a_date_means_its_first_moment_and_a_time_is_in_the_time_zone_of_the_project(given: str, expires: str) -> None:
    token = created("ann", "--expires", given)
    assert token.expires == datetime.fromisoformat(expires)


def test_every_action_works_without_time_zones() -> None:
    with override_settings(USE_TZ=False):
        for expires in ("90d", "2099-01-31", "2099-01-31T12:30+02:00", "never"):
            assert len(mcptoken("create", "ann", "--name", "zoneless", "--expires", expires)[0]) == 61
        listed, _ = mcptoken("list")
        assert listed.count("zoneless") == 4
        assert "2099-01-31 00:00" in listed
    Token.objects.filter(name="zoneless").delete()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ann", "--expires", "9999-12-31T23:00"], "--expires '9999-12-31T23:00' is not a time: "),
        (["stranger"], "There is no user 'stranger': give the username of an existing user."),
        (["gone"], "'gone' is not active: the token would not work."),
        (["ann", "--expires", "soon"], "--expires 'soon' is not a time: give a lifetime (12h, 30d, 8w), a date or "),
        (["ann", "--expires", "2099-02-30"], "--expires '2099-02-30' is not a time: "),
        (["ann", "--expires", "99999999999d"], "--expires '99999999999d' is not a time: "),
        (["ann", "--expires=-1d"], "--expires '-1d' is not a time: "),
        (["ann", "--expires", ""], "--expires '' is not a time: "),
        (["ann", "--expires", "0h"], "has passed: give a later time."),
        (["ann", "--expires", "2001-01-01"], "2001-01-01 00:00 has passed: give a later time."),
        (["ann", "--scope", "café"], "'café' is not a scope: use ASCII characters"),
        (["ann", "--name", "two\nlines"], "'two\\nlines' is not a name"),
        (["ann", "--name", "x" * 101], "at most 100 characters"),
    ],
)
def test_an_invalid_argument_creates_no_token_and_the_error_says_what_is_allowed(
    arguments: list[str], message: str
) -> None:
    before = Token.objects.count()
    assert message in refusal("create", *arguments)
    assert Token.objects.count() == before


# list


def test_list_shows_the_valid_tokens_and_with_all_also_the_others() -> None:
    Token.objects.all().delete()
    valid, text = issue(name="laptop", scopes=["read", "write"])
    Token.objects.verify(text)
    valid.refresh_from_db()
    of_bob, _ = issue("bob", expires=timezone.now() + timedelta(days=1))
    expired, _ = issue()
    Token.objects.filter(pk=expired.pk).update(expires=timezone.now())
    revoked, _ = issue()
    Token.objects.filter(pk=revoked.pk).revoke()

    def listed(*arguments: str) -> dict[str, str]:
        stdout, _ = mcptoken("list", *arguments)
        assert text[17:] not in stdout
        header, *rows = stdout.splitlines()
        assert header.split() == ["TOKEN", "USER", "NAME", "SCOPES", "STATE", "EXPIRES", "LAST", "USED"]
        return {row.split()[0]: row for row in rows}

    assert listed().keys() == {valid.prefix, of_bob.prefix}
    assert listed("--user", "bob").keys() == {of_bob.prefix}
    everything = listed("--all")
    assert everything.keys() == {valid.prefix, of_bob.prefix, expired.prefix, revoked.prefix}
    assert " ann " in everything[valid.prefix]
    assert "  laptop  read write  active " in everything[valid.prefix]
    assert valid.last_used is not None
    assert everything[valid.prefix].endswith(f"{timezone.localtime(valid.last_used):%Y-%m-%d %H:%M %Z}")
    assert " active " in everything[of_bob.prefix]
    assert everything[of_bob.prefix].endswith("never")
    assert " expired " in everything[expired.prefix]
    assert " revoked " in everything[revoked.prefix]


def test_list_of_an_unknown_user_is_an_error() -> None:
    assert refusal("list", "--user", "stranger") == (
        "There is no user 'stranger': give the username of an existing user."
    )


# revoke


@pytest.mark.parametrize("form", ["{0.prefix}", "{0.key_id}", "{1}"])
def test_revoke_takes_a_token_as_listed_its_key_id_or_its_whole_text(form: str) -> None:
    token, text = issue(name="laptop")
    assert mcptoken("revoke", form.format(token, text))[0] == f"Revoked laptop ({token.prefix}) of ann.\n"
    assert Token.objects.verify(text) is None


def revoked_token() -> str:
    token, _ = issue()
    Token.objects.filter(pk=token.pk).revoke()
    return token.prefix


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UNKNOWN, f"There is no token {UNKNOWN}: `mcptoken list --all` lists all tokens."),
        (lambda: "nonsense", "'nonsense' is not a token: give it as `mcptoken list` does, like mcp_0a1b2c3d4e5f."),
        (revoked_token, " was revoked at "),
    ],
)
def test_if_one_of_several_tokens_cannot_be_revoked_none_is(make: Callable[[], str], message: str) -> None:
    _, text = issue()
    assert message in refusal("revoke", text, make())
    assert Token.objects.verify(text) is not None


def test_the_secret_of_a_mistyped_token_is_not_printed() -> None:
    _, text = issue()
    message = refusal("revoke", text + "x")
    assert text[17:] not in message
    assert f"{text[:16]!r} is not a token" in message
