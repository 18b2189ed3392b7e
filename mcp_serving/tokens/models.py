"""The model of a token. Only a digest of its secret is stored."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import Error, connections, models, router, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import constant_time_compare, get_random_string

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

logger = logging.getLogger(__name__)

DEFAULT_LIFETIME = timedelta(days=90)
"""The default of the command and of the admin, so that a forgotten token does not stay valid for ever."""

LAST_USED_PRECISION = timedelta(minutes=1)
"""A token in constant use costs one write in this time, instead of one a call."""

# The key id is in lower case, so that a database that ignores case cannot confuse two key ids.
_KEY_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY_ID_LENGTH = 12
_SECRET_LENGTH = 43  # the first length with 256 bits, from 62 characters
_KEY_ID = f"[0-9a-z]{{{_KEY_ID_LENGTH}}}"
_SECRET = f"[0-9A-Za-z]{{{_SECRET_LENGTH}}}"
_TOKEN = re.compile(f"mcp_({_KEY_ID})_({_SECRET})")
_REFERENCE = re.compile(f"(?:mcp_)?({_KEY_ID})(?:_{_SECRET})?")
_SCOPE = re.compile(r"[!#-\[\]-~]+")  # RFC 6749, section 3.3
_NO_DIGEST = "0" * 64


def key_id_of(text: str) -> str | None:
    """The key id in a reference to a token: the key id alone, ``mcp_`` and the key id, or the whole token."""
    found = _REFERENCE.fullmatch(text)
    return found[1] if found else None


def _digest(secret: str) -> str:
    # A slow hash protects passwords, which can be guessed. A secret of 256 random bits cannot be guessed, and a slow
    # hash would cost each request a tenth of a second.
    return hashlib.sha256(secret.encode()).hexdigest()


def validate_scope(scope: str) -> None:
    """Check scopes that are separated by spaces, by the rules of OAuth.

    Raises:
        ValidationError: a scope has a character that OAuth does not allow.
    """
    for each in scope.split():
        if not _SCOPE.fullmatch(each):
            raise ValidationError(
                f'{each!r} is not a scope: use ASCII characters without spaces, quotation marks (") and backslashes.'
            )


def validate_name(name: str) -> None:
    """Check that a name is one line in a terminal.

    Raises:
        ValidationError: it has an unprintable character.
    """
    if not name.isprintable():
        raise ValidationError(f"{name!r} is not a name: it has unprintable characters.")


class TokenQuerySet(models.QuerySet["Token"]):
    def issue(
        self, user: AbstractBaseUser, *, name: str = "", scopes: Iterable[str] = (), expires: datetime | None
    ) -> tuple[Token, str]:
        """Create a token for a user.

        Args:
            user: the user as whom its client calls.
            name: its purpose, such as a device; shown in lists.
            scopes: its scopes, for servers that require some.
            expires: the end of its validity; None for a token that never expires.

        Returns:
            The row, and the text of the token. The text is not stored, so it cannot be shown again.

        Raises:
            ValidationError: the user is not active, the expiry has passed, a scope or the name is malformed.

        Example:
            >>> token, text = Token.objects.issue(user, name="laptop", expires=timezone.now() + timedelta(days=30))
        """
        token = self.model(user=user, name=name, scope=" ".join(scopes), expires=expires)  # type: ignore[misc] # any user model
        text = token.set_new_secret()
        token.full_clean(exclude=["user"], validate_unique=False)  # these checks would cost queries, and always pass
        token.save(using=self._db)  # type: ignore[attr-defined] # not in django-stubs
        return token, text

    def verify(self, text: str) -> Token | None:
        """The token with this text, with its user; None if it is not valid now. Makes one query.

        Raises:
            django.db.Error: the query failed.
        """
        found = _TOKEN.fullmatch(text)
        if found is None:
            return None
        key_id, secret = found.groups()
        # Through the default manager, as Django's sessions do: a project may hide deleted users there.
        users = get_user_model()._default_manager.all()
        # From the primary database: on a replica, a revoked token would stay valid for a moment.
        rows = self.using(router.db_for_write(self.model)).select_related("user")
        token = rows.filter(key_id=key_id, user__in=users).first()
        # An unknown key id takes the same time, so that timing does not reveal which key ids exist.
        matches = constant_time_compare(_digest(secret), token.digest if token is not None else _NO_DIGEST)
        if token is None or not matches:
            return None
        if token.state is not Token.State.ACTIVE:
            logger.info("Refused the token %s: %s.", token.prefix, token.state.label)
            return None
        token._save_last_use()
        return token

    def revoke(self) -> int:
        """Revoke the tokens of this queryset, from the next request on.

        Returns:
            How many were not revoked before.
        """
        return self.filter(revoked=None).update(revoked=timezone.now())


class Token(models.Model):
    """A bearer token of a user. Its text is ``mcp_<key id>_<secret>``; only a digest of the secret is stored."""

    class State(models.TextChoices):
        ACTIVE = "active", "active"
        EXPIRED = "expired", "expired"
        REVOKED = "revoked", "revoked"
        USER_INACTIVE = "user inactive", "user inactive"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="mcp_tokens")
    name = models.CharField(
        max_length=100, blank=True, validators=[validate_name], help_text="Its purpose, such as a device."
    )
    key_id = models.CharField(max_length=_KEY_ID_LENGTH, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    scope = models.CharField(
        "scopes", max_length=500, blank=True, validators=[validate_scope], help_text="Separated by spaces."
    )
    created = models.DateTimeField(default=timezone.now, editable=False)
    expires = models.DateTimeField(null=True, blank=True, help_text="Leave empty for a token that never expires.")
    revoked = models.DateTimeField(null=True, blank=True, editable=False)
    last_used = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created", "-pk")

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})" if self.name else self.prefix

    def clean(self) -> None:
        if not self._state.adding:  # later, its expiry may pass, and its user may become inactive
            return
        if self.user_id is not None and not self.user.is_active:
            raise ValidationError({"user": f"{self.user.get_username()!r} is not active: the token would not work."})
        if self.expires is not None and self.expires <= timezone.now():
            raise ValidationError({"expires": f"{self.expires:%Y-%m-%d %H:%M} has passed: give a later time."})

    @property
    def prefix(self) -> str:
        """The public part of the token: it names the token, and gives no access."""
        return f"mcp_{self.key_id}"

    @property
    def scopes(self) -> list[str]:
        """The scopes as a list."""
        return self.scope.split()

    @property
    def state(self) -> State:
        """Active, or the reason why it is not valid now."""
        if self.revoked is not None:
            return self.State.REVOKED
        if self.expires is not None and self.expires <= timezone.now():
            return self.State.EXPIRED
        return self.State.ACTIVE if self.user.is_active else self.State.USER_INACTIVE

    def set_new_secret(self) -> str:
        """Give a new row its key id and the digest of a new secret. Return the text of the token."""
        secret = get_random_string(_SECRET_LENGTH)
        self.key_id = get_random_string(_KEY_ID_LENGTH, _KEY_ID_CHARACTERS)
        self.digest = _digest(secret)
        return f"{self.prefix}_{secret}"

    def _save_last_use(self) -> None:
        now = timezone.now()
        before = now - LAST_USED_PRECISION
        if self.last_used is not None and self.last_used > before:
            return
        database = router.db_for_write(Token)
        due = Q(last_used=None) | Q(last_used__lte=before)  # another worker may have written it since
        rows = Token.objects.using(database).filter(due, pk=self.pk)
        try:
            if not connections[database].features.has_select_for_update_skip_locked:
                rows.update(last_used=now)
                return
            # Do not wait for a locked row: each lookup would block a thread meanwhile.
            with transaction.atomic(using=database):
                if rows.select_for_update(skip_locked=True).first() is not None:
                    rows.update(last_used=now)
        except Error as error:  # such as a read-only database: the token is valid nevertheless
            logger.warning("The last use of the token %s could not be saved: %s", self.prefix, error)
