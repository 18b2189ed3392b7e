"""The documentation as a site: `make docs`. The pages stay Markdown that reads well without it."""

import re
from pathlib import Path
from typing import Any

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "mcp_serving",
        "mcp_serving.tokens",
    ],
    USE_TZ=True,
)
django.setup()  # autodoc imports the models of the tokens

project = "mcp-serving"
copyright = "the mcp-serving contributors"
html_title = project
html_theme = "furo"  # loads nothing from other hosts: the site works offline
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}

# Anchors as the Markdown viewers of code hosts make them; a link to one that is not there is a warning.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_rtype = False


DOCS = Path(__file__).parent
NAMES = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
IN_THE_SITE = {f"{name}.md": f"/project/{name.lower()}.md" for name in NAMES}
"""Documents beside docs/ that are pages of the site: each stands in for a page that links to it."""


def read_page(app: Any, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    for document, place in IN_THE_SITE.items():
        if f"/{name}.md" == place:
            page = DOCS.parent / document
            app.env.note_dependency(page)
            source[0] = page.read_text()

    def lead(link: re.Match[str]) -> str:
        text, target, anchor = link.groups(default="")
        path = (page.parent / target).resolve()
        if target.startswith("/") or not path.exists():  # Sphinx has its own words about what is not there
            return link[0]
        place = path.relative_to(DOCS.parent)
        if place.parts[0] == DOCS.name:
            return f"[{text}](/{path.relative_to(DOCS)}{anchor})"
        # A reader of the site has no folder with the sources: there, the text has to do.
        return f"[{text}]({IN_THE_SITE[str(place)]}{anchor})" if str(place) in IN_THE_SITE else text

    source[0] = re.sub(r"\[([^\]]+)\]\(([^()#:\s]+)(#[^)]*)?\)", lead, source[0])


def setup(app: Any) -> None:
    app.connect("source-read", read_page)
