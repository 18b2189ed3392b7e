"""Notifying clients when an object of a model is saved or deleted."""

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
    """Tell clients that a resource has changed, whenever an object of ``model`` is saved or deleted.

    Call it once, where signals are connected: in ``AppConfig.ready``, or below the model. It notifies as
    ``notify_resource_updated`` does, after the commit. Django sends no signals for ``update()``, ``bulk_create()``,
    ``bulk_update()`` and SQL. Proxy models and models that inherit from this one need calls of their own.

    Args:
        model: the model.
        uri: the URI of an object's resource. Braces contain an attribute of the object or of a related object:
            ``"shop://orders/{number}"``, ``"shop://orders/{order.number}"``. A URI without braces is the same for all
            objects.
        lists: whether the creation and the deletion of an object also change the list of resources.

    Raises:
        ValueError: the template has an unmatched brace, or names an attribute that the model does not have.

    Example:
        >>> notify_on_change(Order, "shop://orders/{number}")
        >>> notify_on_change(OrderLine, "shop://orders/{order.number}")
    """
    if re.search(r"[{}]", _BRACES.sub("", uri)):
        raise ValueError(f"{uri!r} has an unmatched brace; an attribute is written as {{number}}.")
    for path in _BRACES.findall(uri):
        _must_exist(model, path, uri)

    def changed(instance: Model, using: str, created: bool, **_: Any) -> None:
        try:
            formatted = _BRACES.sub(lambda match: quote(str(_value(instance, match[1])), safe=""), uri)
        except Exception as error:  # a missing related object, for example, must not prevent the save
            logger.warning("Clients were not notified of a change of %s (%s).", model._meta.label, in_one_line(error))
        else:
            notify_resource_updated(formatted, using=using)
        if lists and created:
            notify_resources_changed(using=using)

    def deleted(**sent: Any) -> None:
        changed(**sent, created=True)

    # AppConfig.ready may run twice; the dispatch_uid connects the receivers once.
    post_save.connect(changed, sender=model, weak=False, dispatch_uid=f"mcp_serving {uri}")
    post_delete.connect(deleted, sender=model, weak=False, dispatch_uid=f"mcp_serving {uri}")


def _value(instance: object, path: str) -> object:
    for name in path.split("."):
        instance = getattr(instance, name)
    return instance


def _must_exist(model: type[Model], path: str, uri: str) -> None:
    """Check the attributes as far as the classes show them. The value of a property is unknown."""
    within: Any = model
    for name in path.split("."):
        if not name.isidentifier():
            raise ValueError(
                f"{uri!r} has {{{path}}}, which is not the name of an attribute; write {{number}} or {{order.number}}."
            )
        if not hasattr(within, name):
            raise ValueError(f"{uri!r} has {{{path}}}, but {within._meta.label} has no {name!r}.")
        try:
            within = within._meta.get_field(name).related_model
        except FieldDoesNotExist:
            return
        if not hasattr(within, "_meta"):  # not a relation, or the related model is not loaded yet
            return
