"""Mail of a preview: held back, and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import django
from django.core import mail
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.message import EmailMessage

from mcp_serving import current_request

HeldMail: TypeAlias = "list[tuple[Callable[[], Any], EmailMessage]]"
"""Messages that were not sent yet, each with the function that sends it."""


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
        self._held += [(partial(self._backend.send_messages, [each]), each) for each in messages]
        return len(messages)


def _hold_mail_of_previews() -> None:
    """Put functions before ``EmailMessage.send`` and ``get_connection``, once.

    ``send`` is enough for a message, with ``MAILERS`` of Django 6.1 too. ``get_connection`` is for code that gives
    messages to a backend, such as ``send_mass_mail``; it is replaced before Django 6.1 only.
    """
    if getattr(EmailMessage.send, "holds_mail", False):
        return
    original = mail.get_connection

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
        held.append((partial(original_send, message, *args, **kwargs), message))
        return 1

    send.holds_mail = True  # type: ignore[attr-defined]
    EmailMessage.send = send  # type: ignore[method-assign,assignment]
