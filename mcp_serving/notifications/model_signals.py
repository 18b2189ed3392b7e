"""A model's saves and deletes, told to the clients that have subscribed to its resources."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.core.exceptions import FieldDoesNotExist
from django.db.models.signals import post_delete, post_save

from mcp_serving.loading import in_one_line
from mcp_serving.notifications.publish import notify_resource_updated, notify_resources_changed

if TYPE_CHECKING:
    from django.db.models import Model

logger = logging.getLogger(__name__)

_BRACES = re.compile(r"\{([^{}]*)\}")


def notify_on_change(model: type[Model], uri: str, *, lists: bool = False) -> None:
    """Tell clients whenever an object of ``model`` is saved or deleted: its resource has changed.

    Called once, where signals are connected: in ``AppConfig.ready``, or below the model. It sends what
    ``notify_resource_updated`` does, after the commit. Django has no signals for what does not go through an object:
    ``update()``, ``bulk_create()``, ``bulk_update()``, SQL. A proxy, or a model that inherits from this one, needs a
    call of its own.

    Args:
        model: whose objects are meant.
        uri: of an object's resource, with its attributes in braces, also those of a related object:
            ``"shop://orders/{number}"``, ``"shop://orders/{order.number}"``. Without braces, it is the resource about
            all of them.
        lists: whether a new object, or a deleted one, changes the list of resources too.

    Raises:
        ValueError: the template names an attribute that the model does not have, or is none.

    Example:
        >>> notify_on_change(Order, "shop://orders/{number}")
        >>> notify_on_change(OrderLine, "shop://orders/{order.number}")
    """
    if re.search(r"[{}]", _BRACES.sub("", uri)):
        raise ValueError(f"{uri!r} has a brace that belongs to no other.")
    for path in _BRACES.findall(uri):
        _must_exist(model, path, uri)

    def changed(instance: Model, using: str, created: bool, **_: Any) -> None:
        try:
            formatted = _BRACES.sub(lambda match: quote(str(_value(instance, match[1])), safe=""), uri)
        except Exception as error:  # a related object that is not there: no reason not to save this one
            logger.warning("No client was told of a change of %s (%s).", model._meta.label, in_one_line(error))
        else:
            notify_resource_updated(formatted, using=using)
        if lists and created:
            notify_resources_changed(using=using)

    def deleted(**sent: Any) -> None:
        changed(**sent, created=True)

    # Called twice, as where `ready` runs twice, it connects once.
    post_save.connect(changed, sender=model, weak=False, dispatch_uid=f"mcp_serving {uri}")
    post_delete.connect(deleted, sender=model, weak=False, dispatch_uid=f"mcp_serving {uri}")


def _value(instance: object, path: str) -> object:
    for name in path.split("."):
        instance = getattr(instance, name)
    return instance


def _must_exist(model: type[Model], path: str, uri: str) -> None:
    """As far as the classes tell: of a property's value nothing is known."""
    within: Any = model
    for name in path.split("."):
        if not name.isidentifier():
            raise ValueError(f"{uri!r} has {{{path}}}, which is no attribute: {{number}}, or {{order.number}}.")
        if not hasattr(within, name):
            raise ValueError(f"{uri!r} has {{{path}}}, but {within._meta.label} has no {name!r}.")
        try:
            within = within._meta.get_field(name).related_model
        except FieldDoesNotExist:
            return
        if not hasattr(within, "_meta"):  # no relation, or one to a model that is not loaded yet
            return
