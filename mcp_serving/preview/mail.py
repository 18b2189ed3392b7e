"""Mail of a preview: held back, and shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from django.core import mail
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.message import EmailMessage

from mcp_serving import current_request

HeldMail: TypeAlias = "list[tuple[BaseEmailBackend, EmailMessage]]"
"""Messages that were not sent yet, each with the backend that sends it."""


@contextmanager
def held_mail() -> Iterator[HeldMail]:
    """Hold back the mail that the block sends through Django."""
    _hold_mail_of_previews()
    held: HeldMail = []
    with current_request.updated(held_mail=held):
        yield held


class _HoldingBackend(BaseEmailBackend):
    """Stands before a backend and keeps each message."""

    def __init__(self, backend: BaseEmailBackend, held: HeldMail) -> None:
        super().__init__()
        self._backend = backend
        self._held = held

    def send_messages(self, email_messages: Iterable[EmailMessage]) -> int:
        messages = [each for each in email_messages if each.recipients()]
        self._held += [(self._backend, each) for each in messages]
        return len(messages)


def _hold_mail_of_previews() -> None:
    """Put a function before ``get_connection``, once: ``send_mail`` and ``EmailMessage.send`` look it up there."""
    original = mail.get_connection
    if getattr(original, "holds_mail", False):
        return

    def get_connection(*args: Any, **kwargs: Any) -> Any:
        backend = original(*args, **kwargs)
        held = current_request.get().held_mail
        return backend if held is None else _HoldingBackend(backend, held)

    get_connection.holds_mail = True  # type: ignore[attr-defined]
    mail.get_connection = get_connection
