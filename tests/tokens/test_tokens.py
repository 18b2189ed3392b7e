"""Bearer tokens of users: what is stored, which tokens are accepted, and what a call costs."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken, TokenVerifier, principal_components
from mcp.shared.exceptions import MCPError

from tests.support import in_django
from tests.support.harness import DEADLINE, MANAGE, ROOT, environment, serving_http
from tests.support.postgres import PostgreSQL

from django.contrib.auth.models import User  # isort: skip - after Django is set up
from django.core.exceptions import ValidationError  # isort: skip
from django.db import OperationalError, connection, router  # isort: skip
from django.test.utils import CaptureQueriesContext  # isort: skip
from django.utils import timezone  # isort: skip

from mcp_serving.tokens import UserTokenVerifier, models  # isort: skip
from mcp_serving.tokens.models import Token  # isort: skip

pytestmark = pytest.mark.usefixtures("users_of_its_own")

RIGHT = "mcp_" + "a" * 12 + "_" + "b" * 43
TEXT = re.compile(r"mcp_[0-9a-z]{12}_[0-9A-Za-z]{43}")
SETTINGS = {**in_django.ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "tests.project.settings_with_tokens"}


def issue(user: str = "ann", **options: Any) -> tuple[Token, str]:
    return Token.objects.issue(in_django.user(user), **{"expires": None, **options})


def verified(text: str) -> AccessToken | None:
    return asyncio.run(UserTokenVerifier().verify_token(text))


def other_secret(text: str) -> str:
    """The token with one character of its secret changed."""
    return text[:-1] + ("a" if text[-1] != "a" else "b")


# What is stored


def test_the_text_of_a_token_has_a_fixed_pattern_and_its_secret_is_not_stored() -> None:
    token, text = issue(scopes=["read", "write"])
    assert TEXT.fullmatch(text)
    assert text.startswith(token.prefix + "_")
    secret = text.removeprefix(token.prefix + "_")
    row = Token.objects.values().get(pk=token.pk)
    assert secret not in str(row)
    assert secret not in f"{token} {token!r} {vars(token)}"


def test_each_token_is_different() -> None:
    assert len({issue()[1][17:] for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scopes": ["café"]}, "is not a scope"),
        ({"scopes": ['a"b']}, "is not a scope"),
        ({"name": "two\nlines"}, "is not a name"),
        ({"name": "x" * 101}, "100 characters"),
        ({"expires": timezone.now() - timedelta(seconds=1)}, "has passed"),
    ],
)
def test_a_token_with_an_invalid_name_scope_or_expiry_is_not_issued(options: dict[str, Any], message: str) -> None:
    before = Token.objects.count()
    with pytest.raises(ValidationError, match=message):
        issue(**options)
    assert Token.objects.count() == before


def test_an_inactive_user_gets_no_token() -> None:
    with pytest.raises(ValidationError, match="is not active"):
        issue("gone")


# The verifier


def test_a_valid_token_gives_its_user_its_scopes_and_its_expiry() -> None:
    ann = in_django.user("ann")
    expires = timezone.now() + timedelta(days=1)
    token, text = issue(scopes=["read", "write"], expires=expires)

    async def work() -> None:
        verifier: TokenVerifier = UserTokenVerifier()
        found = await verifier.verify_token(text)
        assert found is not None
        assert (found.token, found.client_id, found.subject) == (text, token.prefix, str(ann.pk))
        assert (found.scopes, found.expires_at) == (["read", "write"], int(expires.timestamp()))
        user = await UserTokenVerifier().user_for_token(found)  # Django would raise if this made a query
        assert user == ann
        assert user.get_username() == "ann"

    asyncio.run(work())


def test_a_token_that_never_expires_has_no_expiry_and_may_have_no_scopes() -> None:
    found = verified(issue()[1])
    assert found is not None
    assert (found.scopes, found.expires_at) == ([], None)


def test_two_tokens_of_one_user_are_two_principals() -> None:
    found = [verified(issue()[1]) for _ in range(2)]
    principals = {principal_components(token) for token in found if token is not None}
    assert len(principals) == 2
    assert len({subject for _, _, subject in principals}) == 1


def test_the_repr_of_a_verified_token_has_neither_the_user_nor_the_text() -> None:
    _, text = issue()
    found = verified(text)
    assert found is not None
    assert text not in f"{found} {found!r}"
    assert "ann" not in f"{found!r}"
    assert set(found.model_dump()) == set(AccessToken.model_fields)
    assert AccessToken.model_validate_json(found.model_dump_json()).subject == found.subject


def test_the_token_of_another_verifier_has_no_user_here() -> None:
    foreign = AccessToken(token="x", client_id="x", scopes=[], subject=str(in_django.user("ann").pk))
    assert asyncio.run(UserTokenVerifier().user_for_token(foreign)) is None


def unknown() -> str:
    token, text = issue()
    token.delete()
    return text


def expired() -> str:
    token, text = issue()
    Token.objects.filter(pk=token.pk).update(expires=timezone.now())
    return text


def revoked() -> str:
    token, text = issue()
    assert Token.objects.filter(pk=token.pk).revoke() == 1
    return text


def of_an_inactive_user() -> str:
    user = User.objects.create_user("leaver")
    _, text = Token.objects.issue(user, expires=None)
    User.objects.filter(pk=user.pk).update(is_active=False)
    return text


def of_nobody() -> str:
    user = User.objects.create_user("deleted")
    _, text = Token.objects.issue(user, expires=None)
    user.delete()
    return text


def mixed() -> str:
    """The key id of one token with the secret of another."""
    return issue()[1][:17] + issue()[1][17:]


REFUSED = [unknown, expired, revoked, of_an_inactive_user, of_nobody, mixed, lambda: other_secret(issue()[1])]


@pytest.mark.parametrize("make", REFUSED)
def test_an_unknown_expired_revoked_or_orphaned_token_is_refused(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = make()
    assert verified(text) is None
    assert text[17:] not in caplog.text
    User.objects.filter(username="leaver").delete()


def test_the_log_names_the_reason_only_if_the_secret_was_right(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mcp_serving")
    text = revoked()
    verified(other_secret(text))
    assert caplog.messages == []
    verified(text)
    assert caplog.messages == [f"Refused the token {text[:16]}: revoked."]


NEARLY = [
    "mcp_",
    "nonsense",
    RIGHT.upper(),
    f" {RIGHT}",
    f"{RIGHT}\n",
    f"{RIGHT}\0",
    f"{RIGHT}b",
    RIGHT[:-1],
    RIGHT.replace("a", "A"),
    RIGHT.replace("b", "é"),
    RIGHT.replace("a", "\N{ARABIC-INDIC DIGIT ONE}"),
    RIGHT.replace("b", "\udcff"),
]


@pytest.mark.parametrize("text", ["", *NEARLY, "x" * 100_000, RIGHT * 1000])
def test_a_text_that_cannot_be_a_token_is_refused_without_a_query(text: str) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert Token.objects.verify(text) is None
    assert len(queries) == 0


@pytest.mark.parametrize("known", [True, False])
def test_the_secret_is_compared_in_constant_time_even_for_an_unknown_key_id(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = other_secret(issue()[1]) if known else unknown()
    compared: list[tuple[str, str]] = []

    def say_yes(*values: str) -> bool:
        compared.append(values)  # type: ignore[arg-type]
        return True

    assert Token.objects.verify(text) is None
    monkeypatch.setattr(models, "constant_time_compare", say_yes)
    assert (Token.objects.verify(text) is not None) == known
    assert [[len(value) for value in values] for values in compared] == [
        [64, 64]
    ]  # of equal length, or it is not constant


# What it costs


def test_a_call_costs_one_query_and_the_last_use_one_write_a_minute() -> None:
    token, text = issue()

    def queries_of_a_call() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            assert Token.objects.verify(text) is not None
        return [query["sql"].split()[0] for query in queries]

    def last_used() -> Any:
        return Token.objects.get(pk=token.pk).last_used

    assert queries_of_a_call() == ["SELECT", "UPDATE"]
    first = last_used()
    assert abs(first - timezone.now()) < timedelta(seconds=DEADLINE)
    assert queries_of_a_call() == ["SELECT"]
    assert last_used() == first
    Token.objects.filter(pk=token.pk).update(last_used=first - timedelta(seconds=61))
    assert queries_of_a_call() == ["SELECT", "UPDATE"]
    assert last_used() > first


def test_only_one_of_two_workers_writes_the_last_use() -> None:
    token, _ = issue()
    rows = [Token.objects.get(pk=token.pk) for _ in range(2)]
    rows[0]._save_last_use()
    first = Token.objects.get(pk=token.pk).last_used
    rows[1]._save_last_use()
    assert Token.objects.get(pk=token.pk).last_used == first


def test_a_refused_token_has_no_last_use() -> None:
    text = revoked()
    verified(text)
    verified(other_secret(issue()[1]))
    assert Token.objects.filter(key_id=text[4:16], last_used=None).exists()


def test_a_token_is_valid_while_its_last_use_cannot_be_saved(caplog: pytest.LogCaptureFixture) -> None:
    _, text = issue()
    with closing(sqlite3.connect(in_django.DATABASE, isolation_level=None)) as other, connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 10")
        other.execute("BEGIN IMMEDIATE")
        assert Token.objects.verify(text) is not None
        other.execute("ROLLBACK")
        cursor.execute("PRAGMA busy_timeout = 5000")
    assert "could not be saved: database is locked" in caplog.text
    assert text[17:] not in caplog.text


def test_a_token_is_looked_up_in_the_primary_database_and_not_on_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replicas:
        def db_for_read(self, *_: Any, **__: Any) -> str:
            return "replica"

        def db_for_write(self, *_: Any, **__: Any) -> str:
            return "default"

    _, text = issue()
    monkeypatch.setattr(router, "routers", [Replicas()])
    assert Token.objects.verify(text) is not None  # there is no "replica": any query to it fails


# Over HTTP


async def principal(address: str, text: str) -> list[str]:
    """The token, user and Django user that the server sees, through the SDK's client."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {text}"}) as http_client,
        Client(streamable_http_client(address, http_client=http_client)) as client,
    ):
        result = await client.call_tool("who", {})
        assert result.structured_content is not None
        found: list[str] = result.structured_content["result"]
        return found


def status(address: str, text: str) -> int:
    headers = {"Authorization": f"Bearer {text}", "Accept": "application/json, text/event-stream"}
    return httpx2.post(address, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code


@pytest.fixture(scope="module")
def address(users: None) -> Iterator[str]:
    with serving_http(env=SETTINGS) as (_, address):
        yield address


@pytest.mark.process
def test_a_token_gives_access_until_it_is_revoked(address: str) -> None:
    token, text = issue()
    assert anyio.run(principal, f"{address}/mcp", text) == [token.prefix, str(in_django.user("ann").pk), "ann"]
    Token.objects.filter(pk=token.pk).revoke()
    assert status(f"{address}/mcp", text) == 401


@pytest.mark.process
def test_a_revocation_takes_effect_in_open_sessions(address: str) -> None:
    token, text = issue()

    async def work() -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {text}"}) as http_client,
            Client(streamable_http_client(f"{address}/mcp", http_client=http_client), mode="legacy") as client,
        ):
            assert not (await client.call_tool("who", {})).is_error
            await Token.objects.filter(pk=token.pk).aupdate(revoked=timezone.now())
            with pytest.raises(MCPError):
                await client.call_tool("who", {})

    anyio.run(work)


@pytest.mark.process
def test_a_token_without_a_required_scope_gets_403(address: str) -> None:
    _, without = issue(scopes=["write"])
    _, with_it = issue(scopes=["write", "read"])
    assert status(f"{address}/read", without) == 403
    assert status(f"{address}/read", with_it) not in (401, 403)
    assert status(f"{address}/read", "nonsense") == 401


@pytest.mark.process
def test_parallel_calls_of_two_users_each_run_as_their_own_user(address: str) -> None:
    texts = {name: issue(name)[1] for name in ("ann", "bob")}
    seen: dict[str, set[str]] = {name: set() for name in texts}

    async def ask(name: str) -> None:
        seen[name].add((await principal(f"{address}/mcp", texts[name]))[1])

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for name in [*texts] * 10:
                group.start_soon(ask, name)

    anyio.run(work)
    assert seen == {name: {str(in_django.user(name).pk)} for name in texts}


# The database


@pytest.mark.process
def test_while_the_database_is_down_requests_get_503(tmp_path: Path) -> None:
    _, text = issue()
    with serving_http(env={**SETTINGS, "TEST_SQLITE": str(tmp_path / "no folder" / "db")}) as (process, address):
        assert status(f"{address}/mcp", text) == 503
        process.wait_for("OperationalError")
        assert text[17:] not in process.errors


def test_the_verifier_raises_the_error_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any) -> None:
        raise OperationalError("the database is down")

    monkeypatch.setattr(models, "get_user_model", down)
    with pytest.raises(OperationalError, match="is down"):
        verified(RIGHT)


ON_POSTGRES = {
    "TEST_APPS": json.dumps(["django.contrib.contenttypes", "django.contrib.auth", "mcp_serving.tokens"]),
    "TEST_MCP_SERVING": json.dumps(
        {"SERVER": "tests.project.tokens.server", "HTTP_SERVER": "tests.project.tokens.build_daphne"}
    ),
}


@pytest.fixture(scope="module")
def text_on_postgres(postgres: PostgreSQL) -> str:
    """A token in the database there."""
    env = environment(**postgres.env() | ON_POSTGRES)
    create_user = "from django.contrib.auth.models import User; User.objects.create_user('token-user')"
    for command in (["migrate", "--verbosity", "0"], ["shell", "--verbosity", "0", "-c", create_user]):
        subprocess.run([*MANAGE, *command], env=env, cwd=ROOT, check=True)
    create = [*MANAGE, "mcptoken", "create", "token-user"]
    return subprocess.run(create, env=env, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.process
def test_a_locked_row_does_not_delay_a_call(postgres: PostgreSQL, text_on_postgres: str) -> None:
    with (
        serving_http(env=postgres.env() | ON_POSTGRES) as (_, address),
        postgres.locked("mcp_tokens_token"),
    ):
        for _ in range(3):  # each makes several requests: more than the verifier has threads
            assert anyio.run(principal, f"{address}/mcp", text_on_postgres)[2] == "token-user"


@pytest.mark.process
def test_the_verifier_uses_at_most_four_connections_and_never_a_stale_one(
    postgres: PostgreSQL, text_on_postgres: str
) -> None:
    # With DEBUG, one more connection looks for unapplied migrations.
    closing_env, keeping_env = (postgres.env(CONN_MAX_AGE=age) | ON_POSTGRES | {"TEST_DEBUG": "0"} for age in (0, 60))

    async def call_in_parallel(address: str) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(principal, f"{address}/mcp", text_on_postgres)

    with serving_http(env=closing_env) as (_, address):
        anyio.run(call_in_parallel, address)
        anyio.run(postgres.reaches, 0)
    with serving_http(env=keeping_env) as (_, address):
        anyio.run(call_in_parallel, address)
        assert 1 <= postgres.connections() <= 4
        assert anyio.run(postgres.end_connections) >= 1
        anyio.run(call_in_parallel, address)


# The app


def python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env=environment(**env), cwd=ROOT, capture_output=True, text=True, timeout=30
    )


@pytest.mark.process
def test_the_verifier_can_be_created_before_django_is_set_up_and_loads_no_daphne() -> None:
    _, text = issue()
    done = python(
        "import asyncio, sys, django\n"
        "from mcp_serving.tokens import UserTokenVerifier; verifier = UserTokenVerifier()\n"
        f"django.setup(); print(asyncio.run(verifier.verify_token({text!r})).client_id)\n"
        "assert not {'daphne', 'twisted'} & set(sys.modules)",
        **SETTINGS,
    )
    assert (done.stdout.strip(), done.stderr) == (text[:16], "")


@pytest.mark.process
def test_without_the_app_the_verifier_names_the_missing_entry_of_installed_apps(tmp_path: Path) -> None:
    done = python(
        "import django; django.setup(); from mcp_serving.tokens import UserTokenVerifier; UserTokenVerifier()",
        **in_django.ENVIRONMENT,
    )
    assert done.stderr.splitlines()[-1] == (
        "django.core.exceptions.ImproperlyConfigured: UserTokenVerifier needs 'mcp_serving.tokens' in INSTALLED_APPS."
    )


@pytest.mark.process
def test_only_a_project_with_the_app_has_its_table(tmp_path: Path) -> None:
    script = (
        "import django; django.setup(); from django.core.management import call_command\n"
        "from django.db import connection; call_command('migrate', verbosity=0)\n"
        "print([name for name in connection.introspection.table_names() if 'mcp' in name])"
    )
    without = {**in_django.ENVIRONMENT, "TEST_SQLITE": str(tmp_path / "without")}
    with_it = {**SETTINGS, "TEST_SQLITE": str(tmp_path / "with")}
    assert python(script, **without).stdout == "[]\n"
    assert python(script, **with_it).stdout == "['mcp_tokens_token']\n"


@pytest.mark.process
@pytest.mark.parametrize("settings", ["settings_with_tokens", "settings_with_accounts"])
def test_the_migrations_are_complete_for_any_user_model(settings: str) -> None:
    env = environment(**SETTINGS | {"DJANGO_SETTINGS_MODULE": f"tests.project.{settings}"})
    subprocess.run([*MANAGE, "makemigrations", "mcp_tokens", "--check"], env=env, cwd=ROOT, check=True)


@pytest.mark.process
def test_without_a_user_model_check_and_the_command_name_the_missing_app() -> None:
    env = environment(
        **SETTINGS | {"DJANGO_SETTINGS_MODULE": "tests.project.settings_with_accounts", "TEST_USER_MODEL": "auth.User"}
    )
    check = subprocess.run([*MANAGE, "check"], env=env, cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 1
    assert "(mcp_tokens.E001) mcp_serving.tokens needs a user model" in check.stderr
    create = subprocess.run([*MANAGE, "mcptoken", "create", "ann"], env=env, cwd=ROOT, capture_output=True, text=True)
    assert create.stderr.startswith("CommandError: mcp_serving.tokens needs a user model")
    assert "Add 'django.contrib.auth'" in create.stderr


@pytest.mark.process
def test_a_custom_user_model_works_and_users_that_its_manager_hides_are_refused(tmp_path: Path) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "tests.project.settings_with_accounts", "TEST_SQLITE": str(tmp_path / "db")}
    made = python(
        "import django; django.setup(); from django.core.management import call_command\n"
        "from tests.project.accounts.models import Account\n"
        "call_command('migrate', run_syncdb=True, verbosity=0)\n"
        "print(Account.objects.create(email='ann@x.example').pk)",
        **env,
    )
    create = [*MANAGE, "mcptoken", "create", "ann@x.example"]
    done = subprocess.run(create, env=environment(**env), cwd=ROOT, capture_output=True, text=True)
    text = done.stdout.strip()
    assert "of ann@x.example" in done.stderr
    verify = (
        "import asyncio, django; django.setup(); from mcp_serving.tokens import UserTokenVerifier\n"
        f"verify = lambda: asyncio.run(UserTokenVerifier().verify_token({text!r})); print(verify().subject)\n"
        "from tests.project.accounts.models import Account; Account.objects.update(left=True); print(verify())"
    )
    assert python(verify, **env).stdout == f"{made.stdout}None\n"


@pytest.mark.process
def test_the_command_and_the_app_load_neither_the_sdk_nor_daphne() -> None:
    done = python(
        "import sys; from django.core.management import execute_from_command_line as run\n"
        "run(['manage.py', 'mcptoken', 'list'])\n"
        "sys.exit(str([name for name in ('mcp', 'daphne', 'twisted', 'anyio', 'channels') if name in sys.modules]))",
        **SETTINGS,
    )
    assert done.stderr == "[]\n"
