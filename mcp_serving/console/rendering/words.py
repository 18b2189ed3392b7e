"""What a server declares, in words for people."""

from __future__ import annotations

from dataclasses import dataclass

from django.apps import apps
from django.conf import settings
from django.utils.translation import gettext as _

from mcp_serving.inspection.catalog import Declaration, Offered


@dataclass(frozen=True)
class Trait:
    """A short word about a tool, and the sentence behind it. ``tone``: "calm", "warn" or "plain"."""

    word: str
    sentence: str
    tone: str = "plain"


def traits(offered: Offered, declaration: Declaration) -> list[Trait]:
    """The annotations of a tool, and whether it asks first."""
    annotations = getattr(offered.declared, "annotations", None)
    given = {name: getattr(annotations, name, None) for name in _HINTS}
    found = []
    if given["read_only_hint"]:
        found.append(Trait(_("reads only"), _("The tool says that it changes nothing."), "calm"))
    elif given["read_only_hint"] is False or given["destructive_hint"]:
        destructive = given["destructive_hint"] is not False
        found.append(
            Trait(_("destructive"), _("The tool may change or delete what is there."), "warn")
            if destructive
            else Trait(_("adds only"), _("The tool adds something, and deletes nothing."))
        )
    if declaration.asks_first:
        found.append(Trait(_("asks first"), _("The user has to accept each call.")))
    if given["idempotent_hint"]:
        found.append(Trait(_("idempotent"), _("The same call a second time changes nothing more.")))
    if given["open_world_hint"]:
        found.append(Trait(_("open world"), _("The tool reaches systems outside of this site.")))
    return found


_HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


@dataclass(frozen=True)
class NameInWords:
    """A permission and what Django's admin calls it, or a scope and what the consent page says of it."""

    name: str
    words: str


def permission_in_words(declaration: Declaration) -> list[NameInWords]:
    """Each permission that is needed. Makes a query."""
    if declaration.permission is None:
        return []
    names = declaration.permission.split(" and ")
    if not apps.is_installed("django.contrib.auth"):
        return [NameInWords(name, "") for name in names]
    from django.contrib.auth.models import Permission

    found = []
    for name in names:
        app, _dot, codename = name.partition(".")
        words = Permission.objects.filter(content_type__app_label=app, codename=codename).values_list("name", flat=True)
        found.append(NameInWords(name, words.first() or ""))
    return found


def scopes_in_words(declaration: Declaration) -> list[NameInWords]:
    """Each scope that a token needs. The words are those of django-oauth-toolkit's setting, if it is there."""
    words = getattr(settings, "OAUTH2_PROVIDER", {}).get("SCOPES", {})
    return [NameInWords(scope, str(words.get(scope, ""))) for scope in declaration.scopes]
