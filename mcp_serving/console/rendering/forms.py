"""Forms from the JSON Schema of a tool or of a question, by django-native-jsonform.

The library is rendered by the server, labels each field, and validates what is sent. It has native fields for objects,
lists, enums and ``oneOf``. What it edits as JSON text only is brought into that shape here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils.translation import gettext as _
from django_native_jsonform import JSONSchemaFormField
from django_native_jsonform.registry import FieldFactoryContext, default_registry

from mcp_serving.inspection.arguments import resolved

Schema = dict[str, Any]

MOST_DEPTH = 6
"""Objects in objects; deeper ones, and those that hold themselves, are edited as JSON."""

SHORT = 100
"""A text of at most so many characters gets one line; others grow."""

TEMPLATES = {
    kind: f"mcp_console/form/{kind}.html" for kind in ("widget", "leaf", "object", "array", "array_item", "union")
}

registry = default_registry.clone()


class TextField(forms.CharField):
    """A text as the user wrote it: browsers send its line ends as CRLF."""

    def to_python(self, value: Any) -> str:
        return (super().to_python(value) or "").replace("\r\n", "\n")


def _text(context: FieldFactoryContext) -> forms.Field:
    schema = context.schema
    longest = schema.get("maxLength")
    is_short = "pattern" in schema or "format" in schema or (longest is not None and longest <= SHORT)
    return TextField(
        required=context.required,
        disabled=context.disabled,
        label=schema.get("title"),
        help_text=schema.get("description", ""),
        min_length=schema.get("minLength"),
        max_length=longest,
        strip=False,
        widget=forms.TextInput if is_short else forms.Textarea(attrs={"rows": 1, "class": "grows"}),
    )


registry.register_field("string", _text)
for _format in ("uri", "url", "email", "uuid", "date-time", "time"):  # as text: the tool says what is wrong with it
    registry.register_field("string", _text, format=_format)


class SchemaForm(forms.Form):
    """The arguments that a JSON Schema describes.

    A field that the user leaves alone is not sent, so that the tool's own default applies.

    Args:
        schema: of an object.
        data: what the browser sent.
        initial: values to begin with.
        prefix: stands before the names of the fields.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        data: Any = None,
        *,
        initial: Mapping[str, Any] | None = None,
        prefix: str | None = None,
        titles: bool = False,
    ) -> None:
        super().__init__(data, prefix=prefix)
        shaped = shape(dict(schema), titles=titles)
        self.has_fields = bool(shaped.get("properties"))
        """Whether there is anything to fill in."""
        if self.has_fields:
            self.fields["arguments"] = JSONSchemaFormField(
                schema=shaped,
                registry=registry,
                templates=TEMPLATES,
                required=True,
                label="",
                initial=dict(initial) if initial else None,
                max_array_items=1000,
            )

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc] # not in django-stubs
        binding = self.fields["arguments"].widget.binding if self.has_fields else None
        if binding is None or not self.errors:
            return
        binding.has_field_errors = any(name != NON_FIELD_ERRORS for name in binding.form.errors)
        for errors in binding.form.errors.values():
            # What JSON Schema says of a number that was left empty.
            errors.data = [
                ValidationError(_("This field is required."))
                if each.message.startswith("None is not of type")
                else each
                for each in errors.as_data()
            ]

    @property
    def arguments_html(self) -> str:
        """The fields."""
        return str(self["arguments"]) if self.has_fields else ""

    @property
    def arguments(self) -> dict[str, Any]:
        """What the user filled in, once the form is valid."""
        return dict(self.cleaned_data.get("arguments") or {})


def shape(schema: Schema, *, titles: bool = False) -> Schema:
    """The schema as the form library has native fields for it.

    References are resolved, ``null`` becomes a field that may be left empty, ``anyOf`` becomes ``oneOf``, and a list of
    choices that may be left empty gets an empty choice.

    Args:
        titles: label the fields by their titles; else by their names, as a tool's arguments are called.
    """
    return _shaped(schema, schema, (), "", is_required=True, titles=titles)


def _shaped(schema: Any, root: Schema, seen: tuple[str, ...], name: str, *, is_required: bool, titles: bool) -> Schema:
    if not isinstance(schema, dict):
        return {"x-jsonform-raw": True, "title": name}
    reference = schema.get("$ref")
    if reference in seen or len(seen) > MOST_DEPTH:
        return _raw(resolved(schema, root), name)
    inside = (*seen, reference) if reference else seen
    found: Schema = copy.deepcopy(dict(resolved(schema, root)))
    found.pop("$defs", None)
    if len(found.get("allOf", ())) == 1:
        found |= {**resolved(found.pop("allOf")[0], root), **found}
    alternatives = [*found.pop("anyOf", ()), *found.pop("oneOf", ())]
    if alternatives:
        others = [each for each in alternatives if each != {"type": "null"}]
        if len(others) == 1:
            about = {key: found[key] for key in ("title", "description", "default") if key in found}
            merged = {**others[0], **about}
            return _shaped(merged, root, seen, name, is_required=is_required, titles=titles)
        if all(isinstance(each, dict) and "const" in each for each in others):
            found["choices"] = [{"value": each["const"], "title": each.get("title", each["const"])} for each in others]
            found["enum"] = [each["const"] for each in others]
        else:
            found["oneOf"] = [
                {
                    **(each := _shaped(other, root, inside, "", is_required=True, titles=titles)),
                    "title": _kind(other, each, root),
                }
                for other in others
            ]
    if isinstance(found.get("type"), list) and "null" in found["type"]:
        kinds = [kind for kind in found["type"] if kind != "null"]
        found["type"] = kinds[0] if len(kinds) == 1 else kinds
    if "default" in found and found["default"] is None:
        del found["default"]
    title = found.get("title")
    found["title"] = (title if titles and title else name) or name
    _shape_children(found, root, inside, titles=titles)
    _add_choices(found, is_required=is_required)
    return found


def _shape_children(found: Schema, root: Schema, seen: tuple[str, ...], *, titles: bool) -> None:
    if isinstance(found.get("properties"), dict):
        required = found.get("required", ())
        found["properties"] = {
            name: _shaped(each, root, seen, name, is_required=name in required, titles=titles)
            for name, each in found["properties"].items()
        }
    if isinstance(found.get("items"), dict):
        found["items"] = _shaped(found["items"], root, seen, "", is_required=True, titles=titles)


def _add_choices(found: Schema, *, is_required: bool) -> None:
    """A choice that is not made is sent as nothing, where it may be left out."""
    if found.get("type") == "boolean" and not is_required and "default" not in found:
        found["choices"] = [{"value": True, "title": _("yes")}, {"value": False, "title": _("no")}]
        found["enum"] = [True, False]
    if "enum" in found and None not in found["enum"]:
        found.setdefault("choices", [{"value": value, "title": str(value)} for value in found["enum"]])
        if not is_required and "default" not in found:
            found["choices"] = [{"value": "", "title": "—"}, *found["choices"]]


def _raw(schema: Mapping[str, Any], name: str) -> Schema:
    return {"x-jsonform-raw": True, "title": name, "description": str(schema.get("description", ""))}


def _kind(schema: Any, shaped: Schema, root: Schema) -> str:
    """What an alternative is called: its title, or its type."""
    title = resolved(schema, root).get("title")
    return str(title or shaped.get("type") or _("anything"))
