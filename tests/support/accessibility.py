"""axe-core, which looks at a page of the browser."""

from __future__ import annotations

from tests.npm import MODULES
from tests.support.browser import Page

AXE = MODULES / "axe-core" / "axe.min.js"


def serious(page: Page) -> list[str]:
    """What axe-core finds serious or critical on the page, with the elements."""
    page.run(AXE.read_text() + "\nglobalThis.axe = axe;")
    found: list[str] = page.run(
        """
        const { violations, passes } = await axe.run(document);
        if (passes.length < 10) throw new Error("axe-core has looked at nothing");
        return violations
          .filter(({ impact }) => impact === "serious" || impact === "critical")
          .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`.slice(0, 1000));
        """
    )
    return found
