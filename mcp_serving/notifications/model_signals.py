"""Notifying clients when an object of a model is saved or deleted."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.core.exceptions import FieldDoesNotExist
from django.db.models.signals import post_delete, post_save, pre_save

from mcp_serving.loading import in_one_line
from mcp_serving.notifications.publish import notify_resource_updated, notify_resources_changed

if TYPE_CHECKING:
    from django.db.models import Model

logger = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\{(\+?)([^{}]*)\}")

_RESERVED = ":/?#[]@!$&'()*+,;="
"""The characters that a ``{+variable}`` may contain, by RFC 6570."""


def notify_on_change(model: type[Model], uri: str, *, lists: bool = False) -> None:
    """Tell clients that a resource has changed, whenever an object of ``model`` is saved or deleted.

    Call it once, where signals are connected: in ``AppConfig.ready``, or below the model. It notifies as
    ``notify_resource_updated`` does, after the commit. When a save changes the URI of an object, the old and the new
    URI are notified. For this, each save of an existing object costs one more query, unless the URI depends only on
    the primary key.

    Django sends no signals for ``update()``, ``bulk_create()``, ``bulk_update()`` and SQL. Proxy models and models
    that inherit from this one need calls of their own. Objects that ``loaddata`` loads are not notified.

    Args:
        model: the model.
        uri: the URI of an object's resource, as in the resource's template. Braces contain an attribute of the object
            or of a related object: ``"shop://orders/{number}"``, ``"shop://orders/{order.number}"``. In
            ``{+attribute}``, slashes and other reserved characters are kept. A URI without braces is the same for all
            objects.
        lists: whether the creation and the deletion of an object also change the list of resources.

    Raises:
        ValueError: the template has an unmatched brace, or names an attribute that the model does not have.

    Example:
        >>> notify_on_change(Order, "shop://orders/{number}")
        >>> notify_on_change(OrderLine, "shop://orders/{order.number}")
    """
    _check_template(model, uri)
    notifier = _notifiers.setdefault((model, uri), _ModelNotifier(model, uri))
    notifier.lists = notifier.lists or lists
    # AppConfig.ready may run twice: a dispatch_uid is connected once.
    uid = f"mcp_serving {uri}"
    if notifier.uri_may_change:
        pre_save.connect(notifier.before_save, sender=model, weak=False, dispatch_uid=uid)
    post_save.connect(notifier.after_save, sender=model, weak=False, dispatch_uid=uid)
    post_delete.connect(notifier.after_delete, sender=model, weak=False, dispatch_uid=uid)


class _ModelNotifier:
    """The receivers of a model's signals, for one URI template."""

    def __init__(self, model: type[Model], template: str) -> None:
        self.lists = False
        self._model = model
        self._template = template
        names = {path.partition(".")[0] for _, path in _VARIABLE.findall(template)} - {"pk"}
        fields = {name: field for field in model._meta.concrete_fields for name in (field.name, field.attname)}
        self._only_fields = names <= fields.keys()
        used = {fields[name] for name in names & fields.keys() if not fields[name].primary_key}
        self._field_names = {name for name, field in fields.items() if field in used}
        self._old_uri = f"_mcp_serving_old_uri {template}"

    @property
    def uri_may_change(self) -> bool:
        """Whether a save can change the URI of an object. A new primary key makes a new object instead."""
        return bool(self._field_names) or not self._only_fields

    def before_save(
        self, instance: Model, using: str, raw: bool, update_fields: frozenset[str] | None, **_: Any
    ) -> None:
        if raw or instance._state.adding:
            return
        if update_fields is not None and self._only_fields and not self._field_names & update_fields:
            return
        try:
            stored = self._model._base_manager.using(using).filter(pk=instance.pk).first()
            if stored is not None:
                vars(instance)[self._old_uri] = self._uri(stored)
        except Exception as error:
            self._log(error)

    def after_save(self, instance: Model, using: str, raw: bool, created: bool, **_: Any) -> None:
        if raw:
            return
        old_uri = vars(instance).pop(self._old_uri, None)
        self._notify(instance, using, old_uri=old_uri, list_changed=created)

    def after_delete(self, instance: Model, using: str, **_: Any) -> None:
        self._notify(instance, using, old_uri=None, list_changed=True)

    def _notify(self, instance: Model, using: str, *, old_uri: str | None, list_changed: bool) -> None:
        try:
            uri = self._uri(instance)
        except Exception as error:  # a missing related object, for example, must not prevent the save
            self._log(error)
        else:
            notify_resource_updated(uri, using=using)
            if old_uri not in (None, uri):
                notify_resource_updated(old_uri, using=using)
        if self.lists and list_changed:
            notify_resources_changed(using=using)

    def _uri(self, instance: Model) -> str:
        return _VARIABLE.sub(
            lambda match: quote(str(_value(instance, match[2])), safe=_RESERVED if match[1] else ""), self._template
        )

    def _log(self, error: Exception) -> None:
        logger.warning("Clients were not notified of a change of %s (%s).", self._model._meta.label, in_one_line(error))


_notifiers: dict[tuple[type[Model], str], _ModelNotifier] = {}


def _value(instance: object, path: str) -> object:
    for name in path.split("."):
        instance = getattr(instance, name)
    return instance


def _check_template(model: type[Model], uri: str) -> None:
    """Check the braces and the attributes of a template.

    Raises:
        ValueError: the template has an unmatched brace, or names an attribute that the model does not have.
    """
    if re.search(r"[{}]", _VARIABLE.sub("", uri)):
        raise ValueError(f"{uri!r} has an unmatched brace; an attribute is written as {{number}}.")
    for _, path in _VARIABLE.findall(uri):
        _check_attribute(model, path, uri)


def _check_attribute(model: type[Model], path: str, uri: str) -> None:
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
