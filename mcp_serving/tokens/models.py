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
"""What the command and the admin suggest: long enough not to be a nuisance, short enough to end a forgotten one."""

LAST_USED_PRECISION = timedelta(minutes=1)
"""A token in constant use costs one write in this time, and not one a call."""

# The key id is in lower case, so that a database which ignores case cannot take one for another.
_KEY_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY_ID_LENGTH = 12
_SECRET_LENGTH = 43  # of 62 characters: the first length with 256 bits
_KEY_ID = f"[0-9a-z]{{{_KEY_ID_LENGTH}}}"
_SECRET = f"[0-9A-Za-z]{{{_SECRET_LENGTH}}}"
_TEXT = re.compile(f"mcp_({_KEY_ID})_({_SECRET})")
_NAMING = re.compile(f"(?:mcp_)?({_KEY_ID})(?:_{_SECRET})?")
_SCOPE = re.compile(r"[!#-\[\]-~]+")  # RFC 6749, section 3.3
_NO_DIGEST = "0" * 64


def key_id_of(text: str) -> str | None:
    """The key id in what people use to name a token: ``mcp_`` and the key id, either alone, or the whole token."""
    found = _NAMING.fullmatch(text)
    return found[1] if found else None


def _digest(secret: str) -> str:
    # A slow hash is for what people make up. Nobody can try out 256 random bits, so that a slow one would protect
    # nothing, and cost each request the tenth of a second that it takes by design.
    return hashlib.sha256(secret.encode()).hexdigest()


def validate_scope(scope: str) -> None:
    """Refuse what OAuth does not allow in a list of scopes that spaces separate."""
    for each in scope.split():
        if not _SCOPE.fullmatch(each):
            raise ValidationError(
                f'{each!r} is no scope: give ASCII characters without spaces, quotation marks (") and backslashes.'
            )


def validate_name(name: str) -> None:
    """Refuse what would not be one line in a terminal, where the names are listed."""
    if not name.isprintable():
        raise ValidationError(f"{name!r} cannot be a name: it has characters that cannot be printed.")


class TokenQuerySet(models.QuerySet["Token"]):
    def issue(
        self, user: AbstractBaseUser, *, name: str = "", scopes: Iterable[str] = (), expires: datetime | None
    ) -> tuple[Token, str]:
        """A new token for a user.

        Args:
            user: whom the token stands for.
            name: what it is for, for those who read the list.
            scopes: what it allows, where a server asks for scopes.
            expires: when it ends; None is never.

        Returns:
            The row, and the token's text: it is stored nowhere, so that this is the only time to see it.

        Raises:
            ValidationError: the user is not active, the expiry has passed, a scope or the name is malformed.

        Example:
            >>> token, text = Token.objects.issue(user, name="laptop", expires=timezone.now() + timedelta(days=30))
        """
        token = self.model(user=user, name=name, scope=" ".join(scopes), expires=expires)  # type: ignore[misc] # any user model
        text = token.set_new_secret()
        token.full_clean(exclude=["user"], validate_unique=False)  # which would be queries, for what is so already
        token.save(using=self._db)  # type: ignore[attr-defined] # not in django-stubs
        return token, text

    def verify(self, text: str) -> Token | None:
        """The token with this text and, in the same query, its user; None unless it is valid now.

        Raises:
            django.db.Error: the database could not be asked.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        key_id, secret = found.groups()
        # As Django's sessions do, through the manager: a project may hide users there whom it has given up.
        users = get_user_model()._default_manager.all()
        # From where it is written: on a replica, a token would outlive its revocation.
        rows = self.using(router.db_for_write(self.model)).select_related("user")
        token = rows.filter(key_id=key_id, user__in=users).first()
        # An unknown key id costs the same: the time does not tell which ones there are.
        matches = constant_time_compare(_digest(secret), token.digest if token is not None else _NO_DIGEST)
        if token is None or not matches:
            return None
        if token.state is not Token.State.ACTIVE:
            logger.info("Refused the token %s: %s.", token.prefix, token.state.label)
            return None
        token._note_use()
        return token

    def revoke(self) -> int:
        """Revoke those that are not yet; how many these were. It holds from the next request on."""
        return self.filter(revoked=None).update(revoked=timezone.now())


class Token(models.Model):
    """A bearer token of a user. Its text is ``mcp_<key id>_<secret>``; of the secret only a digest is kept."""

    class State(models.TextChoices):
        ACTIVE = "active", "active"
        EXPIRED = "expired", "expired"
        REVOKED = "revoked", "revoked"
        USER_INACTIVE = "user inactive", "user inactive"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="mcp_tokens")
    name = models.CharField(
        max_length=100, blank=True, validators=[validate_name], help_text="What it is for, such as a device."
    )
    key_id = models.CharField(max_length=_KEY_ID_LENGTH, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    scope = models.CharField(
        "scopes", max_length=500, blank=True, validators=[validate_scope], help_text="With spaces between them."
    )
    created = models.DateTimeField(default=timezone.now, editable=False)
    expires = models.DateTimeField(null=True, blank=True, help_text="Leave it empty for a token that never expires.")
    revoked = models.DateTimeField(null=True, blank=True, editable=False)
    last_used = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created", "-pk")

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix})" if self.name else self.prefix

    def clean(self) -> None:
        if not self._state.adding:  # a token may grow old, and its user leave
            return
        if self.user_id is not None and not self.user.is_active:
            raise ValidationError({"user": f"{self.user.get_username()!r} is not active: the token would not work."})
        if self.expires is not None and self.expires <= timezone.now():
            raise ValidationError({"expires": f"{self.expires:%Y-%m-%d %H:%M} has passed: give a later time."})

    @property
    def prefix(self) -> str:
        """How the token's text begins: it says which token it is, and opens nothing."""
        return f"mcp_{self.key_id}"

    @property
    def scopes(self) -> list[str]:
        """The scopes one by one."""
        return self.scope.split()

    @property
    def state(self) -> State:
        """Whether it is valid now, or else why not."""
        if self.revoked is not None:
            return self.State.REVOKED
        if self.expires is not None and self.expires <= timezone.now():
            return self.State.EXPIRED
        return self.State.ACTIVE if self.user.is_active else self.State.USER_INACTIVE

    def set_new_secret(self) -> str:
        """Give a row that is not saved yet its key id and secret, and return the text: only now is it known."""
        secret = get_random_string(_SECRET_LENGTH)
        self.key_id = get_random_string(_KEY_ID_LENGTH, _KEY_ID_CHARACTERS)
        self.digest = _digest(secret)
        return f"{self.prefix}_{secret}"

    def _note_use(self) -> None:
        now = timezone.now()
        before = now - LAST_USED_PRECISION
        if self.last_used is not None and self.last_used > before:
            return
        database = router.db_for_write(Token)
        due = Q(last_used=None) | Q(last_used__lte=before)  # asked again: other workers have read the same row
        rows = Token.objects.using(database).filter(due, pk=self.pk)
        try:
            if not connections[database].features.has_select_for_update_skip_locked:
                rows.update(last_used=now)
                return
            # A row that somebody has locked is not waited for: each lookup would hold a thread meanwhile.
            with transaction.atomic(using=database):
                if rows.select_for_update(skip_locked=True).first() is not None:
                    rows.update(last_used=now)
        except Error as error:  # a database that is read-only for a while: the token is valid all the same
            logger.warning("The last use of the token %s could not be noted: %s", self.prefix, error)
