"""Mail of a preview: held back, and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import django
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


class _MessageSender(BaseEmailBackend):
    """Sends a held message as ``EmailMessage.send`` would have sent it."""

    def __init__(self, send: Callable[[EmailMessage], int]) -> None:
        super().__init__()
        self._send = send

    def send_messages(self, email_messages: Iterable[EmailMessage]) -> int:
        return sum(self._send(each) for each in email_messages)


def _hold_mail_of_previews() -> None:
    """Put functions before ``EmailMessage.send`` and ``get_connection``, once.

    ``send`` is enough for a message, with ``MAILERS`` of Django 6.1 too. ``get_connection`` is for code that gives
    messages to a backend, such as ``send_mass_mail``; it is replaced before Django 6.1 only.
    """
    original = mail.get_connection
    if getattr(EmailMessage.send, "holds_mail", False):
        return

    def get_connection(*args: Any, **kwargs: Any) -> Any:
        backend = original(*args, **kwargs)
        held = current_request.get().held_mail
        return backend if held is None else _HoldingBackend(backend, held)

    if django.VERSION < (6, 1):  # from then on it warns of each caller outside of Django, as this function is
        mail.get_connection = get_connection
    original_send = EmailMessage.send

    def send(message: EmailMessage, *args: Any, **kwargs: Any) -> int:
        held = current_request.get().held_mail
        if held is None:
            return original_send(message, *args, **kwargs)
        if not message.recipients():
            return 0
        held.append((_MessageSender(lambda each: original_send(each, *args, **kwargs)), message))
        return 1

    send.holds_mail = True  # type: ignore[attr-defined]
    EmailMessage.send = send  # type: ignore[method-assign,assignment]
