"""Small charts as inline SVG, without scripts and without styles, which a content security policy may forbid."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH = 140
HEIGHT = 32
STEP = 10
"""Width of a day, before the chart is scaled to ``WIDTH``."""


def bars(values: Sequence[float], title: str, top: float | None = None) -> SafeString:
    """One bar for each value.

    Args:
        values: the values, which must not be negative.
        title: the text for screen readers.
        top: the value of a full bar; by default the largest value.
    """
    top = top or max(values, default=0) or 1
    heights = [value / top * HEIGHT for value in values]
    shapes = (
        (number * STEP + 1, f"{HEIGHT - height:.1f}", STEP - 2, f"{height:.1f}")
        for number, height in enumerate(heights)
    )
    rects = format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"/>', shapes)
    return _svg(len(values), title, rects)


def lines(series: Sequence[Sequence[float | None]], title: str) -> SafeString:
    """One line for each series, with a common scale. None interrupts a line."""
    top = max((value for values in series for value in values if value is not None), default=0) or 1
    paths = []
    for number, values in enumerate(series):
        dots = [
            (day * STEP + STEP / 2, HEIGHT - 2 - value / top * (HEIGHT - 4))
            for day, value in enumerate(values)
            if value is not None
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        paths.append((points, "none" if number == 0 else "3 2"))
        if len(dots) == 1:  # a line of one point is not visible
            paths.append((f"{points} {dots[0][0] + 2:.1f},{dots[0][1]:.1f}", "none"))
    shapes = format_html_join(
        "",
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-dasharray="{}" '
        'vector-effect="non-scaling-stroke"/>',
        paths,
    )
    return _svg(max(map(len, series), default=0), title, shapes)


def _svg(days: int, title: str, shapes: SafeString) -> SafeString:
    return format_html(
        '<svg role="img" width="{4}" height="{1}" viewBox="0 0 {0} {1}" preserveAspectRatio="none" fill="currentColor">'
        "<title>{2}</title>{3}</svg>",
        days * STEP,
        HEIGHT,
        title,
        shapes,
        WIDTH,
    )
