"""``manage.py mcptoken``: creates, lists and revokes tokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from mcp_serving import loading
from mcp_serving.tokens.checks import user_model_problem
from mcp_serving.tokens.models import DEFAULT_LIFETIME, Token, key_id_of
from mcp_serving.users import user_by_name

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

UNITS = {"h": "hours", "d": "days", "w": "weeks"}
COLUMNS = ("TOKEN", "USER", "NAME", "SCOPES", "STATE", "EXPIRES", "LAST USED")


class Command(BaseCommand):
    help = "Creates, lists and revokes the tokens with which users call the MCP server over HTTP."
    requires_system_checks: list[str] = []  # noqa: RUF012 - checks may import the URLs, and so the MCP SDK

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")

        create = actions.add_parser("create", help="create a token and print it; it cannot be shown again")
        create.add_argument("username", help="the user as whom its client calls")
        create.add_argument("--name", default="", help="its purpose, such as a device")
        create.add_argument(
            "--scope", action="append", default=[], dest="scopes", help="a scope; may be given several times"
        )
        create.add_argument(
            "--expires",
            default=f"{DEFAULT_LIFETIME.days}d",
            metavar="WHEN",
            help="a lifetime (12h, 30d, 8w), a date or time (2030-01-31, 2030-01-31T12:00), or never; "
            "default: %(default)s",
        )

        show = actions.add_parser("list", help="list the valid tokens")
        show.add_argument("--user", metavar="USERNAME", help="only the tokens of this user")
        show.add_argument("--all", action="store_true", help="also expired and revoked tokens")

        revoke = actions.add_parser("revoke", help="revoke tokens, from the next request on")
        revoke.add_argument("tokens", nargs="+", metavar="TOKEN", help="as listed: mcp_ and the key id")

    def handle(self, *args: Any, **options: Any) -> None:
        if problem := user_model_problem():
            raise CommandError(problem)
        try:
            {"create": self._create, "list": self._list, "revoke": self._revoke}[options["action"]](options)
        except Error as error:
            raise CommandError(
                f"The database cannot be used: {loading.cause_of(error)}. Has `manage.py migrate` been run?"
            ) from error

    def _create(self, options: dict[str, Any]) -> None:
        user = _user(options["username"])
        expires = _expiry(options["expires"])
        try:
            token, text = Token.objects.issue(user, name=options["name"], scopes=options["scopes"], expires=expires)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stdout.write(text)  # before anything else can fail: it cannot be shown again
        self.stderr.write(
            f"{token} of {user.get_username()}, scopes: {token.scope or 'none'}, expires: {_formatted(expires)}. "
            "The token on standard output is not stored and cannot be shown again.",
            lambda line: line,  # without the style of an error
        )

    def _list(self, options: dict[str, Any]) -> None:
        tokens = Token.objects.select_related("user")
        if options["user"] is not None:
            tokens = tokens.filter(user__pk=_user(options["user"]).pk)
        rows = [
            (
                token.prefix,
                str(token.user.get_username()),  # a custom user model may have another type
                token.name or "-",
                token.scope or "-",
                str(token.state.label),
                _formatted(token.expires),
                _formatted(token.last_used),
            )
            for token in tokens
            if options["all"] or token.state is Token.State.ACTIVE
        ]
        widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
        for row in (COLUMNS, *rows):
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def _revoke(self, options: dict[str, Any]) -> None:
        tokens = [_token(given) for given in options["tokens"]]  # all are looked up before the first is revoked
        for token in tokens:
            Token.objects.filter(pk=token.pk).revoke()
            self.stdout.write(f"Revoked {token} of {token.user.get_username()}.")


def _user(name: str) -> AbstractBaseUser:
    user = user_by_name(name)
    if user is None:
        field = get_user_model().USERNAME_FIELD
        raise CommandError(f"There is no user {name!r}: give the {field} of an existing user.")
    return user


def _token(given: str) -> Token:
    key_id = key_id_of(given)
    if key_id is None:  # cut, because it may contain most of a secret
        raise CommandError(f"{given[:16]!r} is not a token: give it as `mcptoken list` does, like mcp_0a1b2c3d4e5f.")
    token = Token.objects.select_related("user").filter(key_id=key_id).first()
    if token is None:
        raise CommandError(f"There is no token mcp_{key_id}: `mcptoken list --all` lists all tokens.")
    if token.revoked is not None:
        raise CommandError(f"{token} was revoked at {_formatted(token.revoked)}: leave it out.")
    return token


def _expiry(given: str) -> datetime | None:
    """The expiry that ``--expires`` gives; None for never."""
    if given == "never":
        return None
    try:
        if found := re.fullmatch(r"(\d+)([hdw])", given, re.ASCII):
            return timezone.now() + timedelta(**{UNITS[found[2]]: int(found[1])})
        moment = parse_datetime(given)
        if moment is None and (day := parse_date(given)):
            moment = datetime(day.year, day.month, day.day)
        if moment is not None and settings.USE_TZ:
            moment = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
            moment.astimezone(UTC)  # raises if no database can store it
            return moment
        if moment is not None:
            return moment if timezone.is_naive(moment) else timezone.make_naive(moment)
    except (ValueError, OverflowError):  # the 30th of February, a million years
        pass
    raise CommandError(
        f"--expires {given!r} is not a time: give a lifetime (12h, 30d, 8w), a date or time (2030-01-31, "
        "2030-01-31T12:00), or never."
    )


def _formatted(moment: datetime | None) -> str:
    if moment is None:
        return "never"
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.strftime("%Y-%m-%d %H:%M %Z").rstrip()
